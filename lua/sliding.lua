-- Exact sliding window: the times of all units that were charged in the trailing period, in a ring.
-- Twin of ratelimit-runtime/src/algorithm/sliding/mod.rs.
--
-- This file decides nearly all calls of one unit on a small ring: it reads the state by one command, and writes the new
-- time and the mark behind it by another. `ring.lua` explains the state and decides all other calls.
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `acquire`: the birth of a state without one
-- threshold  units that a period admits
-- period     microseconds
--
-- Returns the arguments of `answer.lua`.
local function sliding(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period
)
  -- A small ring has at most 626 bytes. The state of a large ring, or of a log, has its numbers in the first 62.
  local state = call('GETRANGE', key, '0', threshold <= 120 and '625' or '61')
  if cost == 1 and op == 'decide' and threshold <= 120 and string.byte(state) == 3 then
    local size, place = #state, string.find(state, '\255\255', 15, true)
    while place and place % 4 ~= 3 do place = string.find(state, '\255\255', place + 1, true) end
    local used = place and place + 3 <= size and unpack('>I2', state, place + 2)
    if used and size % 4 == 2 and used * 4 + 18 <= size then
      local _, lives, base = unpack('>I1I6I7', state)
      -- The positions of the last and of the first time.
      local at, from = place - 4, place - used * 4
      if at < 15 then at = size - 3 end
      if from < 15 then from = from + size - 14 end
      local last, oldest = unpack('>I4', state, at), unpack('>I4', state, from)
      local now = base + last
      if now < clock then now = clock end
      local limit = now - period - base
      if last <= limit then
        used = 0
      else
        while oldest <= limit do
          from, used = from + 4, used - 1
          if from > size then from = 15 end
          oldest = unpack('>I4', state, from)
        end
      end
      if used == threshold then
        return false, 0, base + oldest + period - clock, base + last + period - clock, 0, 3, lives
      end
      last = now - base
      if used < threshold and used * 4 + 18 < size and last < 4294901760 then
        used = used + 1
        if place + 7 <= size then
          call('SETRANGE', key, string.format('%d', place - 1), pack('>I4I2I2', last, 65535, used))
        else
          call('SETRANGE', key, string.format('%d', place - 1), pack('>I4', last))
          call('SETRANGE', key, '14', pack('>I2I2', 65535, used))
        end
        return true, threshold - used, 0, now + period - clock, 0, 3, lives, ''
      end
    end
  end

  --@include ring
  local allowed, remaining, retry, reset, slack, version, lives, changed, receipt = sliding_ring(
    call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, sliding)
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
