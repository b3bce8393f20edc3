
-- What a bucket can give back of a charge: at most its least level since the charge.
-- Twin of ratelimit-runtime/src/algorithm/least_levels.rs, which explains the steps.
--
-- text  string: the number of the last charge (7), and for each step its first charge (7) and its level (7)
--
-- Returns functions on the steps: lower, charge, give_back, and packed, which returns them as such a string.
local function least_levels(pack, unpack, text)
  local MAX_STEPS = 16
  local last, first, level, size = unpack('>I7', text), {}, {}, (#text - 7) / 14
  for step = 1, size do first[step], level[step] = unpack('>I7I7', text, step * 14 - 6) end

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

  local function lower(now)
    for step = 1, size do level[step] = math.min(level[step], now) end
    merge()
  end

  local function charge(now)
    last, size = last + 1, size + 1
    first[size], level[size] = last, now
    merge()
    return last
  end

  local function give_back(number, units)
    local step = size
    while step > 0 and first[step] > number do step = step - 1 end
    if step == 0 then return 0 end
    local given = math.min(units, level[step])
    local rest = level[step] - given
    if first[step] < number then
      table.insert(first, step + 1, number)
      table.insert(level, step + 1, level[step])
      step, size = step + 1, size + 1
    end
    for index = step, size do level[index] = level[index] - given end
    for index = 1, step - 1 do level[index] = math.min(level[index], rest) end
    merge()
    return given
  end

  local function packed()
    local parts = { pack('>I7', last) }
    for step = 1, size do parts[step + 1] = pack('>I7I7', first[step], level[step]) end
    return table.concat(parts)
  end

  return lower, charge, give_back, packed
end
