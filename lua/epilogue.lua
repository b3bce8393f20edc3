
-- The end of every script: the state is written, the TTL kept, the reply packed.

if changed and reset == 0 then
  call('DEL', key)
elseif changed then
  -- Setting a TTL costs more than all else here, so it is set an eighth longer than needed, the
  -- state says until when it lasts, and it is set again when that no longer suffices. A clock that is
  -- not this server's gets a minute of drift, and may step: then the TTL is asked for as well.
  local lives = state and state ~= '' and struct.unpack('>I6', state, 2) or 0
  local since, need = math.floor(clock / 1000), math.ceil(reset / 1000)
  if given == 1 then need = need + 60000 end
  local short = lives <= since + need or given == 1 and call('PTTL', key) < need
  if short then lives = since + need + math.floor(need / 8) + 1 end
  call('SETRANGE', key, 0, struct.pack('>I1I6', VERSION, lives) .. changed)
  if short then call('PEXPIRE', key, lives - since) end
end

return struct.pack('>I7I1I4I7I7I4', clock, allowed and 1 or 0, remaining, retry, reset, slack)
