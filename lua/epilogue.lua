
-- The end of every call: the state is written, the TTL kept, the reply packed.

if changed and reset == 0 then
  call('DEL', key)
elseif changed then
  -- Setting a TTL costs more than all else here, so it is set an eighth longer than needed, the
  -- state says until when it lasts, and it is set again when that no longer suffices. A clock that is
  -- not this server's gets a minute of drift, and may step: then the TTL is asked for as well.
  local since, need = (clock - clock % 1000) / 1000, (reset + -reset % 1000) / 1000
  if given == 1 then need = need + 60000 end
  if lives <= since + need or given == 1 and call('PTTL', key) < need then
    lives = since + need + math.floor(need / 8) + 1
    call('SETRANGE', key, '0', pack('>I1I6', version, lives) .. changed)
    call('PEXPIRE', key, lives - since)
  else
    call('SETRANGE', key, '7', changed)
  end
end

return pack('>I7I1I4I7I7I4', clock, allowed and 1 or 0, remaining, retry, reset, slack)
