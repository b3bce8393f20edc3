-- The common part of the scripts that decide several limits: reads the limits, and defines `ask`.
--
-- ARGV[limit + 2]  a limit: the index of its function (1), and its terms

--@include prelude, answer, closing, RUNTIME.algorithms

-- The functions of the algorithms, the formats of their terms for `unpack`, and the functions whose counts stand still
-- while their keys are closed.
local algorithms = { RUNTIME.algorithms }
local layouts = { RUNTIME.layouts }
local stand_still = { RUNTIME.stand_still }

-- Of each limit the function and its last arguments.
local limits, unpack_list = {}, _G.unpack
for limit = 1, #ARGV - 2 do
  local packed = ARGV[limit + 2]
  local index = string.byte(packed)
  limits[limit] = { algorithms[index], unpack(layouts[index], packed, 2) }
end

-- Returns a function that applies an operation to a call of a key, and returns the reply of `answer.lua`.
local function apply_to(limit, key)
  local decide_and_terms = limits[limit]
  local decide = decide_and_terms[1]
  return function(call, clock, op, cost, operand)
    return answer(call, pack, key, clock, given,
      decide(call, pack, unpack, key, clock, given, op, cost, operand, unpack_list(decide_and_terms, 2)))
  end
end

-- Applies `op` to a call of `cost` units of `key`; an `operand` is 0 unless given. Returns the reply. If the call
-- fails, raises its error.
local function ask(limit, key, op, cost, operand)
  local decide_and_terms = limits[limit]
  local decide = decide_and_terms[1]
  local reply = answer(call, pack, key, clock, given,
    decide(call, pack, unpack, key, clock, given, op, cost, operand or 0, unpack_list(decide_and_terms, 2)))
  if type(reply) == 'table' then
    reply = ask_closed(apply_to(limit, key), stand_still[decide], key, op, cost, operand or 0)
    if type(reply) == 'table' then error(reply) end
  end
  -- A call that is charged nothing has a receipt of zeros.
  if op == 'acquire' and cost == 0 then reply = reply .. string.rep('\0', 14) end
  return reply
end
