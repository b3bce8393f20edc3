-- Ends a call: writes what the algorithm has decided, and returns the reply.
--
-- key, given, clock  as the script received them
--
-- The other arguments are the results of an algorithm. An algorithm returns nothing if the value of the key is not
-- its state.
--
-- allowed    whether the call is admitted
-- remaining  the units that are left
-- retry      microseconds from `clock` until the same call can be admitted
-- reset      microseconds from `clock` until the key is as if it had never been used
-- slack      the units of a bucket by which `reset` was rounded up; 2^32 - 1 if `reset` is a wait that later calls
--            at the same moment do not change
-- version    the version of the state
-- lives      the end of the TTL in the state
-- changed    the new state after its beginning; nil if the call changes nothing
-- receipt    of an admitted `acquire`, the birth of the state (7) and the place of the charge (7); otherwise nil
--
-- The beginning of every state is its version (1) and the end of its TTL, in milliseconds of the clock (6). A new
-- layout of a state has a new version, so that a script never reads the state of another release, or another
-- string, as its own.
--
-- A state with charges that can be settled also has a birth (7), after its beginning, and its version is larger
-- by 64. The state of a key that was reset since has another birth.
--
-- Reply      string of 30 bytes: clock (7); 0 if rejected, 1 if allowed, 2 if the key is closed, and 3 if it is closed
--            and the limit also rejects the call at the opening (1); remaining (4); retry (7); reset (7); slack (4).
--            Then the receipt, if there is one. Or an error
local function answer(
  call, pack, key, clock, given, allowed, remaining, retry, reset, slack, version, lives, changed, receipt
)
  if allowed == nil then return { err = 'BADSTATE not the state of a rate limit' } end
  if changed and reset == 0 then
    call('DEL', key)
  elseif changed then
    -- PEXPIRE costs more than everything else here. So the TTL is longer than needed, by an eighth and by ten seconds
    -- at least, the state contains its end, and the script sets the TTL again only when it no longer suffices. If the
    -- clock is not this server's, the TTL is a minute longer, because that clock may drift. It may also step, so the
    -- script then reads the TTL from the server.
    local suffices = lives * 1000 > clock + reset + 1000 and not given
    if not suffices then
      local since, need = (clock - clock % 1000) / 1000, (reset + -reset % 1000) / 1000
      if given then need = need + 60000 end
      suffices = lives > since + need and (not given or call('PTTL', key) >= need)
      if not suffices then
        lives = since + need + math.max(math.floor(need / 8), 10000) + 1
        call('SETRANGE', key, '0', pack('>I1I6', version, lives) .. changed)
        call('PEXPIRE', key, lives - since)
      end
    end
    if suffices then call('SETRANGE', key, '7', changed) end
  end
  local reply = pack('>I7I1I4I7I7I4', clock, allowed and 1 or 0, remaining, retry, reset, slack)
  if receipt then reply = reply .. receipt end
  return reply
end
