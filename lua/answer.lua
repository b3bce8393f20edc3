
-- Ends a call: writes the state, sets its TTL, and returns the reply.
--
-- key, given, clock  as the script received them
--
-- The other arguments are what an algorithm returns. It returns nothing if the key holds something else.
--
-- allowed    whether the call is admitted
-- remaining  the units that are left
-- retry      microseconds from `clock` until the same call can be admitted
-- reset      microseconds from `clock` until the key is as if it had never been used
-- slack      by how many units of a bucket `reset` was rounded up
-- version    the version of the state
-- lives      the end of the TTL, as the state has it
-- changed    the new state behind its beginning; nil if the call changes nothing
--
-- Every state begins with its version (1), and with the end of its TTL in milliseconds of the clock (6).
-- Another layout of the state gets another version, so that the state of another release, or a foreign
-- string, is never read as a state.
--
-- Reply      string of 30 bytes: clock (7), 1 if allowed (1), remaining (4), retry (7), reset (7), slack (4);
--            or an error

if allowed == nil then return { err = 'BADSTATE not the state of a rate limit' } end
if changed and reset == 0 then
  call('DEL', key)
elseif changed then
  -- PEXPIRE costs more than everything else here. So the TTL is an eighth longer than needed, the state
  -- keeps its end, and the TTL is set again only when it no longer suffices. A clock that is not this
  -- server's gets a minute for drift. It may also step, so the script then reads the TTL itself.
  local suffices = lives * 1000 > clock + reset + 1000 and not given
  if not suffices then
    local since, need = (clock - clock % 1000) / 1000, (reset + -reset % 1000) / 1000
    if given then need = need + 60000 end
    suffices = lives > since + need and (not given or call('PTTL', key) >= need)
    if not suffices then
      lives = since + need + math.floor(need / 8) + 1
      call('SETRANGE', key, '0', pack('>I1I6', version, lives) .. changed)
      call('PEXPIRE', key, lives - since)
    end
  end
  if suffices then call('SETRANGE', key, '7', changed) end
end
return pack('>I7I1I4I7I7I4', clock, allowed and 1 or 0, remaining, retry, reset, slack)
