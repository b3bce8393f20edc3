-- Decides calls of closed keys: a key that is closed admits nothing until its opening.
-- Twin of ratelimit-runtime/src/algorithm/closing.rs.
--
-- The value of a closed key wraps the state of the open key, so the algorithms return nothing for it. The times of a
-- bucket are moved forward, so that its level at the opening is the level at the closing.
--
-- A script reads such a value once, changes it in memory, and writes it once. While a hash slot moves to another node,
-- each command on a key that is not there fails, so a script that first removed the closing could lose it.
--
-- State    string of 19 bytes: 32 (1), four zero bytes, opening (7), moved: by how much the times of a bucket are moved
--          (7); then the state of the open key; nothing if it has none

--@include prelude

local CLOSED_HEADER = 19

-- Returns the parts of the state of a closed key: the opening, `moved` and the state of the open key.
local function unwrap(value)
  if #value < CLOSED_HEADER or string.sub(value, 1, 5) ~= ' \0\0\0\0' then return end
  local opening, moved = unpack('>I7I7', value, 6)
  return opening, moved, string.sub(value, CLOSED_HEADER + 1)
end

-- Reads a key. Returns a table of its name, the state of the open key, the TTL, and the other parts if it is closed.
local function read_count(key)
  local value = call('GET', key) or ''
  local opening, moved, state = unwrap(value)
  return {
    key = key, state = state or value, ttl = call('PTTL', key), is_changed = false, opening = opening, moved = moved,
  }
end

local function write_count(count)
  if not count.is_changed then return end
  local value = count.state
  if count.opening then
    value = pack('>I1I4I7I7', 32, 0, count.opening, count.moved) .. value
  end
  if value == '' then
    call('DEL', count.key)
  elseif count.ttl > 0 then
    call('SET', count.key, value, 'PX', count.ttl)
  else
    call('SET', count.key, value, 'KEEPTTL')
  end
end

-- Returns `call` for an algorithm that decides at `clock` + `later`: for the key, it reads and changes the state of the
-- open key in memory.
local function call_of(count, later)
  later = math.ceil(later / 1000)
  local function change(state) count.state, count.is_changed = state, true end
  local commands = {
    GET = function() return count.state ~= '' and count.state end,
    GETRANGE = function(from, upto)
      upto = tonumber(upto)
      return string.sub(count.state, from + 1, upto < 0 and upto or upto + 1)
    end,
    SETRANGE = function(from, text)
      local state = count.state .. string.rep('\0', from - #count.state)
      change(string.sub(state, 1, from) .. text .. string.sub(state, from + #text + 1))
    end,
    SET = change,
    DEL = function() change('') end,
    PTTL = function() return count.ttl - later end,
    PEXPIRE = function(ttl) count.ttl = math.max(count.ttl, ttl + later) end,
  }
  return function(command, key, ...)
    if key ~= count.key then return call(command, key, ...) end
    return commands[command](...)
  end
end

-- Applies `op` to a call of a count in memory. Returns the reply, or an error.
--
-- apply         takes call, clock, op, cost and operand; returns the reply of `answer.lua`
-- stands_still  whether the algorithm is a bucket
local function ask_count(count, apply, stands_still, op, cost, operand)
  if count.opening and count.opening <= clock then
    -- A key without a state expires.
    count.opening, count.is_changed = nil, count.state ~= ''
  end
  if not count.opening then return apply(call_of(count, 0), clock, op, cost, operand) end

  local ahead = count.opening - clock
  local function reject()
    local reply = apply(call_of(count, ahead), count.opening, 'peek', cost, 0)
    if type(reply) == 'table' then return reply end
    local _, _, _, retry, reset = unpack('>I7I1I4I7I7', reply)
    return pack('>I7I1I4I7I7I4', clock, retry > 0 and 3 or 2, 0, ahead + retry, ahead + reset, 0)
  end
  if op == 'decide' or op == 'acquire' or op == 'reserve' or op == 'peek' then return reject() end

  -- A charge that is returned, and a reservation that is cancelled, were made before the closing.
  if stands_still and op == 'return' then
    operand = operand + count.moved
  elseif op == 'cancel' then
    operand.stop, operand.moment = operand.stop + count.moved, operand.moment + count.moved
  end
  local later = stands_still and ahead or 0
  local reply = apply(call_of(count, later), clock + later, op, cost, operand)
  if type(reply) == 'table' then return reply end
  -- A process that has not observed the closing keeps its moments, so no reservation before them is cancelled.
  if op == 'cancel' and string.byte(reply, 8) == 0 then return reject() end
  local used, _, reset, slack = unpack('>I4I7I7I4', reply, 9)
  reset = math.max(later + reset, ahead)
  if op == 'measure' then return pack('>I7I1I4I7I7I4', clock, 2, used, ahead, reset, 0) end
  count.ttl = math.max(count.ttl, math.ceil(ahead / 1000))
  return pack('>I7I1I4I7I7I4', clock, 1, 0, 0, reset, slack) .. string.sub(reply, 31)
end

-- Applies `op` to a call of a key whose state is not of its algorithm. Returns the reply, or an error.
local function ask_closed(apply, stands_still, key, op, cost, operand)
  local count = read_count(key)
  if not count.opening then return { err = 'BADSTATE not the state of a rate limit' } end
  local reply = ask_count(count, apply, stands_still, op, cost, operand)
  if type(reply) == 'string' then write_count(count) end
  return reply
end
