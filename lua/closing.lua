
-- Calls of a closed key, which admits nothing until its opening.
-- Twin of ratelimit-runtime/src/algorithm/closing.rs.
--
-- The state of a closed key contains the state that the open key had, so that an algorithm does not take it for its own.
-- Meanwhile, a bucket stands still: its times are moved to where they are after the opening.
--
-- State    string of 21 bytes: its beginning (7), opening (7), moved: by how much the times of a bucket are moved (7);
--          then the state of the open key; nothing if it has none

-- Returns the parts of the state of a closed key: the opening, `moved`, and the state of the open key.
local function closing_of(state)
  if state and #state >= 21 and string.byte(state) == 32 then
    local opening, moved = unpack('>I7I7', state, 8)
    return opening, moved, string.sub(state, 22)
  end
end

local function closed_state(opening, moved, state)
  return pack('>I1I6I7I7', 32, 0, opening, moved) .. state
end

-- Applies `op` to a call of a key whose state is not of its algorithm. Returns the reply, or an error.
--
-- apply   takes call, clock, op, cost and moment; returns the reply of `answer.lua`
-- stands  whether the algorithm is a bucket
local function ask_closed(apply, stands, key, op, cost, moment)
  local opening, moved, state = closing_of(call('GET', key))
  if not opening then return { err = 'BADSTATE not the state of a rate limit' } end
  if opening <= clock then
    if state == '' then call('DEL', key) else call('SET', key, state, 'KEEPTTL') end
    return apply(call, clock, op, cost, moment)
  end

  local ahead = opening - clock
  if op == 'decide' or op == 'acquire' or op == 'reserve' or op == 'peek' then
    -- Reads the state of the open key.
    local function read(command, name, from, upto)
      if name ~= key then return call(command, name, from, upto) end
      if command == 'GET' then return state ~= '' and state end
      upto = tonumber(upto)
      return string.sub(state, from + 1, upto < 0 and upto or upto + 1)
    end
    local reply = apply(read, opening, 'peek', cost, 0)
    if type(reply) == 'table' then return reply end
    local _, _, _, retry, reset = unpack('>I7I1I4I7I7', reply)
    return pack('>I7I1I4I7I7I4', clock, retry > 0 and 3 or 2, 0, ahead + retry, ahead + reset, 0)
  end

  -- The operation changes the state of the open key, which is then set aside again.
  local at, ttl = stands and opening or clock, call('PTTL', key)
  if state == '' then call('DEL', key) else call('SET', key, state) end
  local reply = apply(call, at, op, cost, moment + (op == 'cancel' and moved or 0))
  if op == 'cancel' and type(reply) == 'string' then
    local _, allowed, _, _, reset = unpack('>I7I1I4I7I7', reply)
    -- All processes cancel what they have reserved, in any order.
    if allowed == 0 and at + reset > moment + moved then reply = apply(call, at, 'refund', cost, 0) end
  end
  ttl = math.max(ttl, call('PTTL', key) + math.ceil((at - clock) / 1000), math.ceil(ahead / 1000))
  call('SET', key, closed_state(opening, moved, call('GET', key) or ''), 'PX', ttl)
  if type(reply) == 'table' then return reply end
  local _, _, _, _, reset, slack = unpack('>I7I1I4I7I7I4', reply)
  reset = math.max(at + reset, opening) - clock
  return pack('>I7I1I4I7I7I4', clock, 1, 0, 0, reset, slack) .. string.sub(reply, 31)
end
