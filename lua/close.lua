-- Closes and opens keys. Twin of `Shard::change_opening` in ratelimit-runtime/src/store/embedded/shard.rs.

--@include prelude, bucket, closing

-- Returns the state of a bucket with its times moved by `by`.
local function move(state, by)
  local function move_time(from)
    local moved = pack('>I7', unpack('>I7', state, from) + by)
    state = string.sub(state, 1, from - 1) .. moved .. string.sub(state, from + 7)
  end
  local has_birth = #state >= 52
  move_time(has_birth and 13 or 6)
  -- The latest moment that was reserved.
  if has_birth then move_time(46) end
  -- The time until which leased units may be spent.
  local position = position_of_lease(state)
  if position then move_time(position) end
  return state
end

-- Closes a count in memory for `time` microseconds. If it is closed, the later opening holds.
local function close(count, stands_still, time)
  if not count.opening then count.opening, count.moved = clock, 0 end
  local by = clock + time - count.opening
  if by <= 0 then return end
  if stands_still and count.state ~= '' then count.state = move(count.state, by) end
  count.opening, count.moved, count.is_changed = count.opening + by, count.moved + by, true
  -- If the clock is not this server's, the TTL is a minute longer, as in `write_state.lua`.
  count.ttl = math.max(count.ttl, given and 60000 or 0) + math.ceil(by / 1000) + 1
end

-- Opens a count in memory, if it is closed.
local function open(count, apply, stands_still)
  if not count.opening then return end
  local by = count.opening - clock
  count.opening, count.is_changed = nil, true
  if count.state == '' then return end
  if stands_still then count.state = move(count.state, -math.min(by, count.moved)) end
  -- `write_state.lua` sets the TTL with the next change, because the state then contains 0 as the end of its TTL.
  count.state = string.sub(count.state, 1, 1) .. string.rep('\0', 4) .. string.sub(count.state, 6)
  -- The TTL without the closing suffices for what was charged before the closing, the other for what was charged since.
  local reset = unpack('>I7', apply(call_of(count, 0), clock, 'peek', 0, 0), 20)
  local before, since = count.ttl - math.floor(by / 1000), math.ceil(reset / 1000)
  count.ttl = math.max(before, since + 1 + (given and 60000 or 0))
end
