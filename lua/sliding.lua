-- Exact sliding window: the times of all units that were charged in the trailing period, in a ring.
-- Twin of ratelimit-runtime/src/algorithm/sliding/mod.rs.
--
-- This file decides nearly all calls of a small ring: it reads the state by one command, and writes the new times and
-- the mark behind them by another. `ring.lua` explains the state and decides all other calls of a ring, `log.lua` those
-- of a log.
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
  -- A small ring has at most 624 bytes. The state of a large ring, or of a log, has its numbers in the first 60.
  local state = call('GETRANGE', key, '0', threshold <= 120 and '623' or '59')
  local size, start, form, version, lives, base, birth = #state, 12, 0, 0, nil, nil, nil
  if size > 19 then
    version, lives, base = unpack('>I1I4I7', state)
    form = version
    if version > 64 then form, start, birth, base = version - 64, 19, unpack('>I7I7', state, 6) end
  end
  if (form == 3 or form == 4) and threshold <= 120
    and (op == 'decide' or op == 'peek' or birth and op == 'acquire') then
    local width, time, number, behind, span = 4, '>I4', '>I2', '>I4I2I2', 4294901760
    if form == 4 then width, time, number, behind, span = 5, '>I5', '>I3', '>I5I2I3', 1099494850560 end
    local find = string.find
    local place = find(state, '\255\255', start + 1, true)
    while place and (place - start) % width ~= 1 do place = find(state, '\255\255', place + 1, true) end
    local used = place and place + width <= size + 1 and unpack(number, state, place + 2)
    if used and (size - start) % width == 0 and (used + 1) * width + start <= size then
      -- The positions of the last and of the first time.
      local at, from = place - width, place - used * width
      if at <= start then at = size - width + 1 end
      if from <= start then from = from + size - start end
      local last, oldest = unpack(time, state, at), unpack(time, state, from)
      local now = base + last
      if now < clock then now = clock end
      -- Times at `now - period` and before have left the window.
      local limit = now - period - base
      if last <= limit then
        used = 0
      else
        while oldest <= limit do
          from, used = from + width, used - 1
          if from > size then from = start + 1 end
          oldest = unpack(time, state, from)
        end
      end
      local remaining = threshold - used - cost
      if remaining < 0 and cost > 0 then
        -- The call fits once all excess units have left the window.
        if remaining < -1 then
          from = from - (remaining + 1) * width
          if from > size then from = from - size + start end
          oldest = unpack(time, state, from)
        end
        remaining = used < threshold and threshold - used or 0
        return false, remaining, base + oldest + period - clock, base + last + period - clock, 0, version, lives
      end
      if op == 'peek' or cost == 0 then
        local reset = used > 0 and base + last + period - clock or 0
        return true, used < threshold and threshold - used or 0, 0, reset, 0, version, lives
      end
      used, last = used + cost, now - base
      if (used + 1) * width + start <= size and last < span then
        local times = pack(behind, last, 65535, used)
        if cost > 1 then times = string.rep(string.sub(times, 1, width), cost - 1) .. times end
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

  -- Calls of logs, and of terms that begin a log.
  local is_long = threshold > 1024 or period > 1036800000000
  local allowed, remaining, retry, reset, slack, changed, receipt
  if form == 2 or form == 66 or form == 130 or state == '' and cost > 0 and (op == 'charge' and (is_long or cost > 1024)
    or is_long and (op == 'decide' or op == 'acquire')) then
    --@include log
    local ring = not is_long and sliding or nil
    return sliding_log(call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, ring)
  end
  --@include ring
  allowed, remaining, retry, reset, slack, version, lives, changed, receipt = sliding_ring(
    call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, sliding)
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
