
-- The end of every script: the state is written, the TTL kept, the reply packed.

if changed and reset == 0 then
  call('DEL', key)
elseif changed or not allowed then
  if changed then call('SETRANGE', key, 0, changed) end
  -- Reading a TTL costs less than setting it, so it is set an eighth longer than needed, and set
  -- again when it no longer suffices; a refused call only mends one that somebody removed. A clock
  -- that is not this server's gets a minute of drift.
  local need = math.ceil(reset / 1000)
  if given == 1 then need = need + 60000 end
  local ttl = call('PTTL', key)
  if ttl < 0 or (changed and ttl < need) then
    call('PEXPIRE', key, need + math.floor(need / 8) + 1)
  end
end

return struct.pack('>I7I1I4I7I7I4', clock, allowed and 1 or 0, remaining, retry, reset, slack)
