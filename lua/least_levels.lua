-- What a bucket can give back of a charge: at most its least level since the charge.
-- Twin of ratelimit-runtime/src/algorithm/least_levels.rs, which explains the steps.
--
-- state  the state of a bucket; nil if it has no steps
-- from   the position of the number of steps (1) in it. Then follow the number of the last charge (7), the latest
--        moment that was reserved (7), and for each step its first charge (7) and its level (7). While units are
--        leased, there are no steps
--
-- Returns a table of functions, and of `reserved`, the latest moment that was reserved.
local function least_levels(pack, unpack, state, from)
  local MAX_STEPS = 16
  local size, last, first, level, levels = 0, 0, {}, {}, { reserved = 0 }
  if state then
    size, last, levels.reserved = unpack('>I1I7I7', state, from)
    for step = 1, size do first[step], level[step] = unpack('>I7I7', state, from + step * 14 + 1) end
  end

  -- Removes a step: its charges belong to the step before.
  local function remove(step)
    table.remove(first, step)
    table.remove(level, step)
    size = size - 1
  end

  local function merge()
    for step = size, 2, -1 do
      if level[step] == level[step - 1] then remove(step) end
    end
    while size > MAX_STEPS do
      local least = 2
      for step = 3, size do
        if level[step] - level[step - 1] < level[least] - level[least - 1] then least = step end
      end
      remove(least)
    end
  end

  -- Records that the bucket has the level `now`. After a change of the rate, and in a full bucket, nothing can be given
  -- back to the charges before.
  local function lower(now, is_changed)
    if is_changed or now == 0 then size, first, level = 0, {}, {} end
    -- The moment of the last charge was reserved at another rate.
    if is_changed then last = last + 1 end
    for step = 1, size do level[step] = math.min(level[step], now) end
    merge()
  end

  -- Records a charge, after which the bucket has the level `now`. Returns its number.
  local function count_charge(now)
    last, size = last + 1, size + 1
    first[size], level[size] = last, now
    merge()
    return last
  end

  -- Gives back up to `units` of the charge with this number. Returns how many.
  local function give_back(number, units)
    local step = size
    while step > 0 and first[step] > number do step = step - 1 end
    -- A charge after the last one was lost: the server has failed over to a replica without it.
    if step == 0 or number > last then return 0 end
    local given = math.min(units, level[step])
    for index = step, size do level[index] = level[index] - given end
    for index = 1, step - 1 do level[index] = math.min(level[index], level[step]) end
    merge()
    return given
  end

  -- Records a charge to which nothing can be given back.
  local function pass()
    last = last + 1
  end

  -- Removes the charge with this number, if it is the last one, and gives back up to `units` of it. Returns how many.
  local function take_back(number, units)
    if number ~= last then return end
    local given = give_back(number, units)
    last = last - 1
    while size > 0 and first[size] > last do remove(size) end
    return given
  end

  local function packed()
    local parts = { pack('>I1I7I7', size, last, levels.reserved) }
    for step = 1, size do parts[step + 1] = pack('>I7I7', first[step], level[step]) end
    return table.concat(parts)
  end

  levels.lower, levels.count_charge, levels.pass, levels.take_back = lower, count_charge, pass, take_back
  levels.give_back, levels.packed = give_back, packed
  return levels
end
