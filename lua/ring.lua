-- The rings of `sliding.lua`: decides any call of a ring.
--
-- A charge of c units adds its time c times. A ring has room for 1,024 times. A limit with a larger threshold or a
-- period of more than twelve days has a log instead, see `log.lua`: each charge adds one record, for any cost. A ring
-- becomes a log when a call of such a limit, or a debt, adds more than fits. A log becomes a ring once all of it has
-- left the window.
--
-- A small ring, of up to 120 times, is read and written as a whole. It has one slot more than times: behind the newest
-- time is the mark, which has the number of times. So a usual call changes two slots side by side. The mark begins
-- with two bytes 255, as no time does. A large ring has its numbers in the header, and a call reads and writes only the
-- slots that it needs. A ring is small or large by the threshold at which it began or last grew.
--
-- Before a time grows too large for its bytes, the oldest time that still counts becomes the base. An hour in 4 bytes
-- takes a new base every 11 minutes at most.
--
-- Small ring  string: its beginning (5), base: the time from which the others are counted (7), and the slots, each
--             with a time (4) or the mark: 65535 (2), length: the number of times (2). The first time is `length`
--             slots before the mark
-- Large ring  string: its beginning (5), base (7), head: the first slot in use (2), length: the slots in use (2),
--             slots: all slots (2), the first time (4), the last time (4); then the slots
--             If the period is more than an hour and a second, each time has 5 bytes, and so has the mark.
--             With a birth, 7 more bytes follow the beginning
--
-- state       the first 624 bytes of the value of the key; 60 if the threshold is larger than 120
-- again       the function `sliding`
--
-- The other arguments and the results are those of `sliding.lua`.

local function sliding_ring(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, again
)
  -- The versions of a small ring, of a large ring and of a log. With times of 5 bytes, the version of a ring is larger
  -- by `WIDE`; with a birth, all are larger by `BORN`.
  local SMALL, LARGE, WIDE, LOG, BORN = 3, 5, 1, 2, 64
  -- The most times of a small and of a large ring.
  local FEW, MOST = 120, 1024
  local adds = cost > 0 and (op == 'decide' or op == 'acquire' or op == 'charge')
  local version, lives, birth, base = SMALL, 0, nil, clock
  local start, width, time, span, longest = 12, 4, '>I4', 4294901760, 3601000000
  if state ~= '' then
    if #state < 16 then return end
    version, lives, base = unpack('>I1I4I7', state)
    if version > BORN then
      version, start = version - BORN, 19
      if #state < 23 then return end
      birth, base = unpack('>I7I7', state, 6)
    end
    if version < SMALL or version > LARGE + WIDE then return end
  elseif period > longest then
    version = SMALL + WIDE
  end
  if version == SMALL + WIDE or version == LARGE + WIDE then
    width, time, span, longest = 5, '>I5', 1099494850560, 1036800000000
  end
  local is_long = threshold > MOST or period > longest

  -- All times, oldest first, once they are read; the number of times, and of slots for times; the first slot in use,
  -- and the first and the last time.
  local all, length, slots, head, oldest, last = '', 0, 0, 0, 0, 0
  local is_small = state == '' or version < LARGE
  if not is_small then
    start = start + 6 + 2 * width
    if #state < start then return end
    local numbers = width == 4 and '>I2I2I2I4I4' or '>I2I2I2I5I5'
    head, length, slots, oldest, last = unpack(numbers, state, birth and 20 or 13)
    if length == 0 or length > slots or head >= slots then return end
  elseif state ~= '' then
    if threshold > FEW then state = call('GETRANGE', key, '0', '623') end
    local place = start
    repeat place = string.find(state, '\255\255', place + 1, true) until not place or (place - 1 - start) % width == 0
    if not place or place + width - 1 > #state then return end
    slots, length = (#state - start) / width - 1, unpack(width == 4 and '>I2' or '>I3', state, place + 2)
    if slots % 1 > 0 or length == 0 or length > slots then return end
    local first = place - 1 - length * width
    all = string.sub(state, math.max(first, start) + 1, place - 1)
    if first < start then all = string.sub(state, first - start) .. all end
    oldest, last = unpack(time, all), unpack(time, all, #all - width + 1)
  end

  -- Times at `now - period` and before have left the window: their number, and whether it is not known yet.
  local now, used, left, is_deep, limit = clock, length, 0, false, 0
  if length > 0 then
    if clock < base + last then now = base + last end
    limit = now - period - base
    if last <= limit then
      used, left, base = 0, length, now
    elseif oldest <= limit and is_small then
      is_deep = true
    elseif oldest <= limit then
      -- In nearly all calls, one time or few have left the window.
      local size, from = slots - head, start + head * width
      if size > length then size = length end
      if size > 16 then size = 16 end
      local few = call('GETRANGE', key, from, from + size * width - 1)
      if #few < size * width then return end
      left = 1
      while left < size do
        oldest = unpack(time, few, left * width + 1)
        if oldest > limit then break end
        left = left + 1
      end
      used, is_deep = length - left, left == size
    end
  end

  -- By how many units the call is too large, if it can be.
  local is_limited = op ~= 'charge' and op ~= 'refund' and op ~= 'return'
  local excess = is_limited and used + cost - threshold or 0
  local returns = op == 'return' and cost > 0 and used > 0
  -- Whether new times need no other form of the state.
  local fits = not is_long and now - base < span and (birth or op ~= 'acquire')
  -- The times to write and the index of their slot.
  local times, index
  local is_read = is_small
  if not is_small and (is_deep or returns or adds and excess <= 0 and not (fits and used + cost <= slots)) then
    local from, wrapped = start + head * width, head + length - slots
    if used > 0 then
      all = call('GETRANGE', key, from, from + length * width - 1)
      if wrapped > 0 then all = all .. call('GETRANGE', key, start, start + wrapped * width - 1) end
      if #all < length * width then return end
    end
    is_read = true
  end
  local seek
  if is_deep or returns then
    -- Returns how many of all times are at `moment` or before.
    seek = function(moment)
      local low, high = 0, #all / width
      while low < high do
        local middle = (low + high - (low + high) % 2) / 2
        if unpack(time, all, middle * width + 1) <= moment then low = middle + 1 else high = middle end
      end
      return low
    end
  end
  if is_deep then
    left = seek(limit)
    used, oldest = length - left, unpack(time, all, left * width + 1)
    if is_limited then excess = used + cost - threshold end
  end
  if is_read then all = string.sub(all, left * width + 1) end

  local retry, changed, receipt = 0, nil, nil
  local allowed = excess <= 0 or cost == 0
  if not allowed then
    -- The call fits once all excess units have left the window.
    local at = oldest
    if excess > 1 and is_read then
      at = unpack(time, all, (excess - 1) * width + 1)
    elseif excess > 1 then
      local from = start + (head + left + excess - 1) % slots * width
      local found = call('GETRANGE', key, from, from + width - 1)
      if #found < width then return end
      at = unpack(time, found)
    end
    retry = base + at + period - clock
  elseif cost > 0 and op ~= 'peek' and (adds or state ~= '') then
    local is_rewritten = adds and not (fits and used + cost <= slots)
    if is_rewritten and (is_long or used + cost > MOST) then
      --@include log_of_ring
      local log = log_of_ring(pack, unpack, birth and LOG + BORN or LOG, lives, birth, base, all, width, time)
      call('SET', key, log, 'KEEPTTL')
      return again(call, pack, unpack, key, clock, given, op, cost, operand, threshold, period)
    end
    if op == 'refund' then
      -- Removes the newest units.
      used = math.max(used - cost, 0)
      all = string.sub(all, 1, used * width)
      if used > 0 and is_read then
        last = unpack(time, all, #all - width + 1)
      elseif used > 0 then
        local from = start + (head + left + used - 1) % slots * width
        local found = call('GETRANGE', key, from, from + width - 1)
        if #found < width then return end
        last = unpack(time, found)
      end
    elseif returns then
      local behind = seek(operand - base)
      index = behind
      while index > 0 and behind - index < cost and unpack(time, all, index * width - width + 1) == operand - base do
        index = index - 1
      end
      -- Removes the returned times: the later times move to their slots.
      times, used = string.sub(all, behind * width + 1), used - (behind - index)
      all = string.sub(all, 1, index * width) .. times
      if used > 0 then oldest, last = unpack(time, all), unpack(time, all, #all - width + 1) end
      if index == behind then times = '' end
    elseif adds then
      if now - base >= span then
        -- The oldest time becomes the base.
        local eight, parts = '>' .. string.rep('I' .. width, 8), {}
        local padded = all .. string.rep('\0', width * 7)
        for from = 1, #all, width * 8 do
          local a, b, c, d, e, f, g, h = unpack(eight, padded, from)
          parts[#parts + 1] = pack(eight, a - oldest, b - oldest, c - oldest, d - oldest, e - oldest, f - oldest,
            g - oldest, h - oldest)
        end
        all, base, oldest = string.sub(table.concat(parts), 1, #all), base + oldest, 0
      end
      last, index = now - base, used
      if used == 0 then oldest = last end
      times = pack(time, last)
      if cost > 1 then times = string.rep(times, cost) end
      used = used + cost
      if is_read then all = all .. times end
      if op == 'acquire' then
        birth = birth or operand
        receipt = pack('>I7I7', birth, now)
      end
      if is_rewritten then
        if used > slots then
          local size = math.max(slots, 4)
          repeat size = size * 2 until size >= used
          slots = math.min(size, MOST, math.max(threshold, used))
        end
        is_small = slots <= FEW and threshold <= FEW
        version = (is_small and SMALL or LARGE) + (width == 5 and WIDE or 0)
        head, left, times = 0, 0, nil
      end
    end
    if is_small then
      local mark = pack(width == 4 and '>I2I2' or '>I2I3', 65535, used)
      changed = pack('>I7', base) .. all .. mark .. string.rep('\0', (slots - used) * width)
    else
      head = (head + left) % slots
      local numbers = width == 4 and '>I7I2I2I2I4I4' or '>I7I2I2I2I5I5'
      changed = pack(numbers, base, head, used, slots, oldest, last)
    end
    if birth then changed = pack('>I7', birth) .. changed end
    if is_rewritten and state ~= '' then
      local state = pack('>I1I4', birth and version + BORN or version, lives) .. changed
      if not is_small then state = state .. all .. string.rep('\0', (slots - used) * width) end
      call('SET', key, state, 'KEEPTTL')
    elseif is_rewritten and not is_small then
      changed = changed .. all .. string.rep('\0', (slots - used) * width)
    elseif not is_small and times and times ~= '' then
      local slot = (head + index) % slots
      local rest = (slots - slot) * width
      if #times > rest then
        call('SETRANGE', key, start, string.sub(times, rest + 1))
        times = string.sub(times, 1, rest)
      end
      call('SETRANGE', key, start + slot * width, times)
    end
  end

  local remaining, reset = 0, 0
  if op == 'measure' then
    remaining = used
  elseif used < threshold then
    remaining = threshold - used
  end
  if used > 0 then reset = base + last + period - clock end
  if birth then version = version + BORN end
  return allowed, remaining, retry, reset, 0, version, lives, changed, receipt
end
