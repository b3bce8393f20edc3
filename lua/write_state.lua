-- Writes the state of a count and sets its TTL. Always inlined, because a function costs time in every call.
--
-- The beginning of every state is its version (1) and the end of its TTL, in milliseconds of the clock (6). A new
-- layout of a state has a new version, so that a script never reads the state of another release, or another
-- string, as its own.
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
    if suffices and changed ~= '' then call('SETRANGE', key, '7', changed) end
  end
end
