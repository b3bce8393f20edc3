
-- What the scripts about several limits share: the limits, and the function that asks about one call.
--
-- In front of this text stand two lines that the runtime writes: `algorithms`, the functions, and `layouts`,
-- how the terms of a limit are packed for each of them.
--
-- ARGV[limit + 2]  a limit: its index in these lists (1), and its terms

-- Of each limit the function and its last arguments.
local limits, unpack_list = {}, _G.unpack
for limit = 1, #ARGV - 2 do
  local packed = ARGV[limit + 2]
  local index = string.byte(packed)
  limits[limit] = { algorithms[index], unpack(layouts[index], packed, 2) }
end

-- Asks about a call of `cost` units of `key`. Returns the reply; raises the error of a call that fails.
local function ask(limit, key, op, cost)
  local decide_and_terms = limits[limit]
  local reply = answer(call, pack, key, clock, given,
    decide_and_terms[1](call, pack, unpack, key, clock, given, op, cost, 0, unpack_list(decide_and_terms, 2)))
  if type(reply) == 'table' then error(reply) end
  return reply
end
