-- The common part of the scripts that decide several limits: reads the limits, and defines `ask`.
--
-- ARGV[limit + 2]  a limit: the index of its function (1), and its terms

--@include prelude, answer, sliding, fixed, sliding_counter, bucket, slots

-- The functions of the algorithms, and the formats of their terms for `unpack`. A bucket that leases has more terms.
local algorithms = { sliding, fixed, sliding_counter, bucket, bucket, slots, fixed }
local layouts = { '>i7i7', '>i7i7i7', '>i7i7i7i7', '>i7i7i7', '>i7i7i7i7i7', '>i7i7i7i7i7i7i7', '>i7i7i7i7i7i7i7' }

-- Of each limit the function and its last arguments.
local limits, unpack_list = {}, _G.unpack
for limit = 1, #ARGV - 2 do
  local packed = ARGV[limit + 2]
  local index = string.byte(packed)
  limits[limit] = { algorithms[index], unpack(layouts[index], packed, 2) }
end

-- Applies `op` to `key`; `birth` and `operand` are 0 unless given, for `block` see `answer.lua`. Returns the reply.
-- If the call fails, raises its error.
local function ask(limit, key, op, cost, birth, operand, block)
  local decide_and_terms = limits[limit]
  local decide = decide_and_terms[1]
  local reply = answer(call, pack, key, clock, given, block,
    decide(call, pack, unpack, key, clock, given, op, cost, birth or 0, operand or 0,
      unpack_list(decide_and_terms, 2)))
  if type(reply) == 'table' then error(reply) end
  -- A call that is admitted and charged nothing has a receipt of zeros.
  local is_free = op == 'take' and cost == 0 and birth and birth > 0 and string.byte(reply, 8) == 1
  if is_free and #reply == 36 then reply = reply .. string.rep('\0', 14) end
  return reply
end
