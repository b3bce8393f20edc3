-- Exact sliding window: the times of all units that were charged in the trailing period, in a ring.
-- Twin of ratelimit-runtime/src/algorithm/sliding/mod.rs.
--
-- This file decides nearly all calls of a small ring: it reads the state by one command, and writes the new times and
-- the mark behind them by another. `ring.lua` explains the state and decides all other calls.
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
  local size, start = #state, 14
  local version, lives, base, birth
  if size > 21 then version, lives, base = unpack('>I1I6I7', state) end
  if version == 67 then start, birth, base = 21, unpack('>I7I7', state, 8) end
  if (version == 3 or birth) and threshold <= 120 and (op == 'decide' or op == 'peek' or birth and op == 'acquire') then
    local find = string.find
    local place = find(state, '\255\255', start + 1, true)
    while place and (place - start) % 4 ~= 1 do place = find(state, '\255\255', place + 1, true) end
    local used = place and place + 3 <= size and unpack('>I2', state, place + 2)
    if used and (size - start) % 4 == 0 and used * 4 + start + 4 <= size then
      -- The positions of the last and of the first time.
      local at, from = place - 4, place - used * 4
      if at <= start then at = size - 3 end
      if from <= start then from = from + size - start end
      local last, oldest = unpack('>I4', state, at), unpack('>I4', state, from)
      local now = base + last
      if now < clock then now = clock end
      -- Times at `now - period` and before have left the window.
      local limit = now - period - base
      if last <= limit then
        used = 0
      else
        while oldest <= limit do
          from, used = from + 4, used - 1
          if from > size then from = start + 1 end
          oldest = unpack('>I4', state, from)
        end
      end
      local remaining = threshold - used - cost
      if remaining < 0 and cost > 0 then
        -- The call fits once all excess units have left the window.
        if remaining < -1 then
          from = from - remaining * 4 - 4
          if from > size then from = from - size + start end
          oldest = unpack('>I4', state, from)
        end
        remaining = used < threshold and threshold - used or 0
        return false, remaining, base + oldest + period - clock, base + last + period - clock, 0, version, lives
      end
      if op == 'peek' or cost == 0 then
        local reset = used > 0 and base + last + period - clock or 0
        return true, used < threshold and threshold - used or 0, 0, reset, 0, version, lives
      end
      used, last = used + cost, now - base
      if used * 4 + start + 4 <= size and last < 4294901760 then
        local times = pack('>I4I2I2', last, 65535, used)
        if cost > 1 then times = string.rep(string.sub(times, 1, 4), cost - 1) .. times end
        local rest = size - place + 1
        if #times > rest then
          call('SETRANGE', key, start, string.sub(times, rest + 1))
          times = string.sub(times, 1, rest)
        end
        -- Saves time: the server takes longer to convert a number to text.
        call('SETRANGE', key, string.format('%d', place - 1), times)
        local receipt = op == 'acquire' and pack('>I7I7', birth, now) or nil
        return true, remaining, 0, now + period - clock, 0, version, lives, '', receipt
      end
    end
  end

  --@include ring
  local allowed, remaining, retry, reset, slack, changed, receipt
  allowed, remaining, retry, reset, slack, version, lives, changed, receipt = sliding_ring(
    call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, sliding)
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
