-- Writes the state of a count and sets its TTL. Always inlined, because a function costs time in every call.
--
-- The beginning of every state is its version (1); the end of its TTL, in units of four seconds of the clock, rounded
-- down (4); and the time until which the key is blocked, or 0 (7). A new layout of a state has a new version, so that a
-- script never reads the state of another release, or another string, as its own. A blocked key without a count has no
-- more than that.
--
-- The arguments are those of `answer.lua`.
local function write_state(call, pack, key, clock, given, reset, version, lives, blocked, changed)
  local need = blocked - clock > reset and blocked - clock or reset
  if changed and reset == 0 then
    -- No units count any more.
    if need > 0 then
      need = (need + -need % 1000) / 1000 + (given and 60000 or 0)
      call('SET', key, pack('>I1I4I7', version, 0, blocked), 'PX', need + 1)
    else
      call('DEL', key)
    end
  elseif changed then
    -- PEXPIRE costs more than everything else here. So the TTL is longer than needed, by an eighth and by ten seconds
    -- at least, the state contains its end, and the script sets the TTL again only when it no longer suffices. If the
    -- clock is not this server's, the TTL is a minute longer, because that clock may drift. It may also step, so the
    -- script then reads the TTL from the server.
    local suffices = lives * 4000000 > clock + need + 1000 and not given
    if not suffices then
      local since = (clock - clock % 1000) / 1000
      need = (need + -need % 1000) / 1000 + (given and 60000 or 0)
      suffices = lives * 4000 > since + need and (not given or call('PTTL', key) >= need)
      if not suffices then
        local ttl = need + math.max(math.floor(need / 8), 10000) + 1
        lives = math.floor((since + ttl) / 4000)
        call('SETRANGE', key, '0', pack('>I1I4I7', version, lives, blocked) .. changed)
        call('PEXPIRE', key, ttl)
      end
    end
    if suffices and changed ~= '' then call('SETRANGE', key, '12', changed) end
  end
end
