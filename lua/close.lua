
-- Closes and opens keys. Twin of `Shard::close` in ratelimit-runtime/src/store/embedded/shard.rs.

-- Returns the state of a bucket with its times moved by `by`.
local function move(state, by)
  local at = #state < 47 and 8 or 15
  local function moved(from) return pack('>I7', unpack('>I7', state, from) + by) end
  state = string.sub(state, 1, at - 1) .. moved(at) .. string.sub(state, at + 7)
  -- The time until which leased units may be spent.
  if #state == 43 then state = string.sub(state, 1, 32) .. moved(33) .. string.sub(state, 40) end
  return state
end

-- Closes a key for `time` microseconds. If it is closed, the later opening holds.
local function close(stands, key, time)
  local state = call('GET', key) or ''
  local opening, moved, inner = closing_of(state)
  if not opening or opening <= clock then opening, moved, inner = clock, 0, inner or state end
  local by, ttl = clock + time - opening, math.max(call('PTTL', key), 0)
  if by <= 0 then return end
  if stands and inner ~= '' then inner = move(inner, by) end
  -- If the clock is not this server's, the TTL is a minute longer, as in `answer.lua`.
  if ttl == 0 and given then ttl = 60000 end
  call('SET', key, closed_state(opening + by, moved + by, inner), 'PX', ttl + math.ceil(by / 1000) + 1)
end

-- Opens a key, if it is closed.
local function open(stands, key)
  local opening, _, state = closing_of(call('GET', key))
  if not opening or opening <= clock then return end
  if state == '' then return call('DEL', key) end
  local by = opening - clock
  if stands then state = move(state, -by) end
  call('SET', key, state, 'PX', math.max(call('PTTL', key) - math.floor(by / 1000), 1))
end
