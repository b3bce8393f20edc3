-- Decides one call.
--
-- KEYS[1]  the key
-- ARGV[1]  the operation, and a zero byte; the cost (4); its operand, or zero (7); then the terms of the
--          limit, as the algorithm takes them
-- ARGV[2]  see `prelude.lua`
-- Reply    see `answer.lua`
--
-- RUNTIME.algorithm is the function of the limit, RUNTIME.layout the format of ARGV[1], and RUNTIME.terms the format of
-- its last part.

--@include prelude, RUNTIME.algorithm

local key = KEYS[1]
local allowed, remaining, retry, reset, slack, version, lives, changed, receipt =
  RUNTIME.algorithm(call, pack, unpack, key, clock, given, unpack(RUNTIME.layout, ARGV[1]))
if allowed == nil then
  -- Only calls of closed keys create these functions.
  --@include answer, closing
  local op, cost, operand, terms = unpack('>sI4I7', ARGV[1])
  local function apply(call, clock, op, cost, operand)
    return answer(call, pack, key, clock, given, RUNTIME.algorithm(
      call, pack, unpack, key, clock, given, op, cost, operand, unpack(RUNTIME.terms, ARGV[1], terms)))
  end
  return ask_closed(apply, RUNTIME.stands_still, key, op, cost, operand)
end
--@inline answer
