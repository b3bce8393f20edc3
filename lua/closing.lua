
-- Decides calls of closed keys: a key that is closed admits nothing until its opening.
-- Twin of ratelimit-runtime/src/algorithm/closing.rs.
--
-- The value of a closed key wraps the state of the open key, so the algorithms return nothing for it. The times of a
-- bucket are moved forward, so that its level at the opening is the level at the closing.
--
-- State    string of 28 bytes: 32 (1), six zero bytes, opening (7), moved: by how much the times of a bucket are moved
--          (7), cancelled: how much earlier the bucket is full because reservations were cancelled (7); then the state
--          of the open key; nothing if it has none
local CLOSED_HEADER = 28

-- Returns the parts of the state of a closed key: the opening, `moved`, `cancelled` and the state of the open key.
local function unwrap(value)
  if not value or #value < CLOSED_HEADER or string.sub(value, 1, 7) ~= ' \0\0\0\0\0\0' then return end
  local opening, moved, cancelled = unpack('>I7I7I7', value, 8)
  return opening, moved, cancelled, string.sub(value, CLOSED_HEADER + 1)
end

local function wrap(opening, moved, cancelled, state)
  return pack('>I1I6I7I7I7', 32, 0, opening, moved, cancelled) .. state
end

-- Applies `op` to a call of a key whose state is not of its algorithm. Returns the reply, or an error.
--
-- apply         takes call, clock, op, cost and moment; returns the reply of `answer.lua`
-- stands_still  whether the algorithm is a bucket
local function ask_closed(apply, stands_still, key, op, cost, moment)
  local opening, moved, cancelled, state = unwrap(call('GET', key))
  if not opening then return { err = 'BADSTATE not the state of a rate limit' } end
  if opening <= clock then
    if state == '' then call('DEL', key) else call('SET', key, state, 'KEEPTTL') end
    return apply(call, clock, op, cost, moment)
  end

  -- Reads the state of the open key.
  local function read(command, name, from, upto)
    if name ~= key then return call(command, name, from, upto) end
    if command == 'GET' then return state ~= '' and state end
    upto = tonumber(upto)
    return string.sub(state, from + 1, upto < 0 and upto or upto + 1)
  end
  local ahead = opening - clock
  if op == 'decide' or op == 'acquire' or op == 'reserve' or op == 'peek' then
    local reply = apply(read, opening, 'peek', cost, 0)
    if type(reply) == 'table' then return reply end
    local _, _, _, retry, reset = unpack('>I7I1I4I7I7', reply)
    return pack('>I7I1I4I7I7I4', clock, retry > 0 and 3 or 2, 0, ahead + retry, ahead + reset, 0)
  end

  local full
  if op == 'cancel' then
    -- All processes cancel what they have reserved, in any order. If the bucket would be full earlier than after the
    -- reservations, the count was reset or refunded: then no unit is known to be of them. The times are rounded.
    local reply = apply(read, opening, 'peek', 0, 0)
    if type(reply) == 'table' then return reply end
    full = opening + unpack('>I7', reply, 20)
    local is_there = full + cancelled + 1 >= moment + moved
    op, cost, moment = is_there and 'refund' or 'peek', is_there and cost or 0, 0
  end
  -- The operation changes the state of the open key, which is then wrapped again.
  local at, ttl = stands_still and opening or clock, math.max(call('PTTL', key), math.ceil(ahead / 1000))
  if state == '' then call('DEL', key) else call('SET', key, state, 'PX', ttl) end
  -- A charge that is returned was made before the closing.
  if stands_still and op == 'return' then moment = moment + moved end
  local done, reply = pcall(apply, call, at, op, cost, moment)
  local reset, slack = 0, 0
  if type(reply) == 'string' and #reply >= 30 then reset, slack = unpack('>I7I4', reply, 20) end
  if full then cancelled = cancelled + math.max(full - math.max(at + reset, opening), 0) end
  ttl = math.max(ttl, call('PTTL', key) + math.ceil((at - clock) / 1000))
  call('SET', key, wrap(opening, moved, cancelled, call('GET', key) or ''), 'PX', ttl)
  if not done then error(reply) end
  if type(reply) == 'table' then return reply end
  reset = math.max(at + reset, opening) - clock
  return pack('>I7I1I4I7I7I4', clock, 1, 0, 0, reset, slack) .. string.sub(reply, 31)
end
