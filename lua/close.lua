
-- Closes and opens keys. Twin of `Shard::change_opening` in ratelimit-runtime/src/store/embedded/shard.rs.

-- Returns the state of a bucket with its times moved by `by`.
local function move(state, by)
  local function move_time(from)
    local moved = pack('>I7', unpack('>I7', state, from) + by)
    state = string.sub(state, 1, from - 1) .. moved .. string.sub(state, from + 7)
  end
  move_time(#state < 47 and 8 or 15)
  -- The time until which leased units may be spent.
  local place = place_of_lease(state)
  if place then move_time(place) end
  return state
end

-- Closes a key for `time` microseconds. If it is closed, the later opening holds.
local function close(stands_still, key, time)
  local value = call('GET', key) or ''
  local opening, moved, cancelled, state = unwrap(value)
  if not opening or opening <= clock then
    opening, moved, cancelled, state = clock, 0, 0, state or value
  end
  -- If the clock is not this server's, the TTL is a minute longer, as in `answer.lua`.
  local by, ttl = clock + time - opening, math.max(call('PTTL', key), given and 60000 or 0)
  if by <= 0 then return end
  if stands_still and state ~= '' then state = move(state, by) end
  value = wrap(opening + by, moved + by, cancelled, state)
  call('SET', key, value, 'PX', ttl + math.ceil(by / 1000) + 1)
end

-- Opens a key, if it is closed. `peek` returns the reply to a peek at the key.
local function open(stands_still, key, peek)
  local opening, moved, _, state = unwrap(call('GET', key))
  if not opening or opening <= clock then return end
  if state == '' then return call('DEL', key) end
  local by = opening - clock
  if stands_still then state = move(state, -math.min(by, moved)) end
  -- `answer.lua` sets the TTL with the next change, because the state then contains 0 as the end of its TTL.
  state = string.sub(state, 1, 1) .. string.rep('\0', 6) .. string.sub(state, 8)
  call('SET', key, state, 'KEEPTTL')
  -- The TTL without the closing suffices for what was charged before the closing, the other for what was charged since.
  local before, since = call('PTTL', key) - math.floor(by / 1000), math.ceil(unpack('>I7', peek(), 20) / 1000)
  call('PEXPIRE', key, math.max(before, since + 1 + (given and 60000 or 0)))
end
