-- Writes the state of a count and sets its TTL. Always inlined, because a function costs time in every call.
--
-- The beginning of every state is its version (1) and the end of its TTL, in units of four seconds of the clock,
-- rounded down (4). A new layout of a state has a new version, so that a script never reads the state of another
-- release, or another string, as its own. In four bytes, the state of a bucket has 30 bytes: with two more, the server
-- would take 8 or 16 bytes more for it.
--
-- A state with charges that can be settled also has a birth (7), after its beginning, and its version is larger
-- by 64. The state of a key that was reset since has another birth.
--
-- The arguments are those of `answer.lua`.
local function write_state(call, pack, key, clock, given, reset, version, lives, changed)
  if changed and reset == 0 then
    call('DEL', key)
  elseif changed then
    -- PEXPIRE costs more than everything else here. So the TTL is longer than needed, by an eighth and by ten seconds
    -- at least, the state contains its end, and the script sets the TTL again only when it no longer suffices. If the
    -- clock is not this server's, the TTL is a minute longer, because that clock may drift. It may also step, so the
    -- script then reads the TTL from the server.
    local suffices = lives * 4000000 > clock + reset + 1000 and not given
    if not suffices then
      local since, need = (clock - clock % 1000) / 1000, (reset + -reset % 1000) / 1000
      if given then need = need + 60000 end
      suffices = lives * 4000 > since + need and (not given or call('PTTL', key) >= need)
      if not suffices then
        local ttl = need + math.max(math.floor(need / 8), 10000) + 1
        lives = math.floor((since + ttl) / 4000)
        call('SETRANGE', key, '0', pack('>I1I4', version, lives) .. changed)
        call('PEXPIRE', key, ttl)
      end
    end
    if suffices and changed ~= '' then call('SETRANGE', key, '5', changed) end
  end
end
