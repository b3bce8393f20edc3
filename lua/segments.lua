-- The slow paths of `lua/sliding.lua`, where the state is explained: calls that move over many records, fill
-- the ring, or give units back. This text stands inside of that file.
--
-- A page is a row of records: the ring, the directory, or a segment. Its blocks of 64 slots have sums, so
-- that a walk over a page reads two blocks and the sums. The sum of a block holds once the block is full.
-- A walk always adds the records of the first block one by one: some may be gone, and the first record may
-- have given up a part.
--
-- Redis may evict a segment, and a slot of a cluster may be on its way to another node. A segment that
-- cannot be read counts as a whole, by its sum in the directory, until the next segment begins to leave
-- the window. So nothing is admitted too early. `offset` is then 4,096.

local BLOCK, PAGE, HUGE = 64, 4096, math.huge
left = left or {}

local function ring()
  return { key = key, at = start, head = head, slots = slots, length = length }
end

-- The directory from the segment of an index on; the first one has index 0.
local function directory(index)
  local at = start + slots * 11 + (slots - slots % BLOCK) / 16
  return { key = key, at = at, head = first + index, slots = first + count, length = count - index }
end

local function segment(index)
  local gone = index == 0 and offset or 0
  return { key = base .. number + index, at = 0, head = gone, slots = PAGE, length = PAGE - gone }
end

-- The bytes of so many records from an index on, as far as they are in a row.
local function read(page, index, size)
  local from = page.at + (page.head + index) % page.slots * 11
  return call('GETRANGE', page.key, from, from + size * 11 - 1)
end

local function time(page, index)
  local record = read(page, index, 1)
  return #record == 11 and unpack('>I7', record) or nil
end

-- How many records are at `moment` or before; nil if the page cannot be read.
local function seek(page, moment)
  local low, high = 0, page.length
  while low < high do
    local middle = math.floor((low + high) / 2)
    local at = time(page, middle)
    if not at then return nil end
    if at <= moment then low = middle + 1 else high = middle end
  end
  return low
end

-- Goes on from the first record to the one in which `units` are reached, or to the index `stop`. Returns
-- the units before that record, its index, time and cost; no time if there is none or it cannot be read.
local function walk(page, units, stop)
  local index, before, sums = 0, 0, nil
  while index < page.length do
    local slot = (page.head + index) % page.slots
    local size = math.min(BLOCK - slot % BLOCK, page.slots - slot, page.length - index)
    local sum = HUGE
    if index > 0 and size == BLOCK and index + BLOCK <= stop then
      local from = page.at + page.slots * 11
      sums = sums or call('GETRANGE', page.key, from, from + (page.slots - page.slots % BLOCK) / 16 - 1)
      if #sums <= slot / 16 then return before, index end
      sum = unpack('>I4', sums, slot / 16 + 1)
    end
    if before + sum < units then
      before, index = before + sum, index + BLOCK
    else
      local records = read(page, index, size)
      if #records < size * 11 then return before, index end
      for from = 1, size * 11, 11 do
        local at, cost = unpack('>I7I4', records, from)
        if index == stop or before + cost >= units then return before, index, at, cost end
        before, index = before + cost, index + 1
      end
    end
  end
  return before, index
end

-- The time of the first record behind a segment. A segment that cannot be read counts until that one leaves.
local function successor(index)
  if index + 1 < count then return time(directory(index + 1), 0) end
  return length > 0 and time(ring(), 0) or last
end

-- Finds the record of so many units of the log: the index of its segment, `count` for the ring, the units
-- within the page, and what `walk` returns.
local function find(units)
  local index, page = 0, nil
  if units > filed then
    index, units, page = count, units - filed, ring()
  else
    if units > front then
      units = units - front
      local before, behind = walk(directory(1), units, HUGE)
      index, units = behind + 1, units - before
    end
    page = segment(index)
  end
  return index, units, walk(page, units, HUGE)
end

-- Removes the keys of segments, of few of them: the others expire.
local function leave(from, upto)
  for index = from, math.min(from + 15, upto) do left[#left + 1] = base .. number + index end
end

-- Drops so many of the first segments. What they counted remains in `used`.
local function drop(segments)
  if segments == 0 then return end
  leave(0, segments - 1)
  local units, _, at, cost = walk(directory(1), HUGE, segments - 1)
  filed = filed - front - units
  number, first, count, offset = number + segments, first + segments, count - segments, 0
  front, oldest = cost or 0, at or length > 0 and time(ring(), 0) or last
  if count == 0 then filed, first = 0, 0 end
end

-- Forgets so many records of the first page, which have so many units.
local function forget(records, units)
  if count > 0 then
    offset, front, filed = offset + records, math.max(front - units, 0), math.max(filed - units, 0)
  else
    head, length = (head + records) % slots, length - records
  end
end

expire = function(moment)
  if count > 0 then
    local before = filed
    local begun = seek(directory(0), moment)
    if begun == count and length > 0 and time(ring(), 0) <= moment then
      drop(count)
    else
      drop(math.max(begun - 1, 0))
      local page = segment(0)
      local gone = offset < PAGE and seek(page, moment)
      local units, _, at
      if gone then units, _, at = walk(page, HUGE, gone) end
      if at then
        forget(gone, math.min(units, front))
        oldest = at
      elseif gone == page.length then
        drop(1)
      else
        oldest, offset = successor(0), PAGE
      end
    end
    used = used - (before - filed)
  end
  if count == 0 and length > 0 then
    local gone = seek(ring(), moment)
    local units, _, at = walk(ring(), HUGE, gone)
    forget(gone, units)
    used, oldest = used - units, at or last
  end
end

-- The time of the record that has to leave until so many of the oldest units have left.
blocker = function(units)
  local index, _, _, _, at = find(units)
  return at or successor(index)
end

-- The sums of all whole blocks of records.
local EIGHT = '>' .. string.rep('I7I4', 8)
local function sums(records)
  local all = {}
  for from = 1, #records - 703, 704 do
    local sum = 0
    for eight = from, from + 703, 88 do
      local _, a, _, b, _, c, _, d, _, e, _, f, _, g, _, h = unpack(EIGHT, records, eight)
      sum = sum + a + b + c + d + e + f + g + h
    end
    all[#all + 1] = pack('>I4', sum)
  end
  return table.concat(all)
end

-- The records of the directory up to an index, from the block of the first one on, and their sums.
local function entries(size)
  if size == 0 then return '', '' end
  local page = directory(0)
  local gone, from = first % BLOCK, page.at + page.slots * 11
  local upto = page.at + (first + size) * 11 - 1
  local records = call('GETRANGE', key, page.at + (first - gone) * 11, upto)
  local whole = (gone + size - (gone + size) % BLOCK) / 16
  from = from + (first - gone) / 16
  return records, whole > 0 and call('GETRANGE', key, from, from + whole - 1) or ''
end

-- The same with one more record.
local function with(records, summed, at, units)
  records = records .. pack('>I7I4', at, units)
  if #records % (BLOCK * 11) == 0 then summed = summed .. sums(string.sub(records, -BLOCK * 11)) end
  return records, summed
end

-- Writes the state anew: a ring of so many slots that begins with these records and sums, and this
-- directory. A long string costs by its length, and a byte that is repeated four times as much.
local BLANK = string.rep('\0', BLOCK)
local function rewrite(size, records, summed, entries, entries_summed)
  start = version == LONG and 55 or 31
  local blank, whole = size * 11 - #records, (size - size % BLOCK) / 16
  call('SET', key, pack('>I1I6', version, lives) .. string.rep('\0', start - 7) .. records
    .. string.rep(BLANK, (blank - blank % BLOCK) / BLOCK) .. string.rep('\0', blank % BLOCK)
    .. summed .. string.rep('\0', whole - #summed) .. entries .. entries_summed, 'KEEPTTL')
  head, slots, first = 0, size, entries ~= '' and first % BLOCK or 0
end

-- Makes room for a record: a ring that is twice as large, or a segment of what is in the ring.
grow = function()
  local from, behind = start + head * 11, start + slots * 11
  local records, summed = call('GETRANGE', key, from, behind - 1), nil
  if head == 0 then
    -- Blocks and their sums stay as they are.
    local whole = (slots - slots % BLOCK) / 16
    summed = whole > 0 and call('GETRANGE', key, behind, behind + whole - 1) or ''
  else
    records = records .. call('GETRANGE', key, start, from - 1)
    summed = sums(records)
  end
  local all, all_summed = entries(count)
  if slots < PAGE then
    local size = slots < threshold and math.min(slots * 2, threshold) or slots * 2
    return rewrite(math.min(size, PAGE), records, summed, all, all_summed)
  end
  if count == 0 then
    -- A new number: a reset may be about to remove the segments of an older log.
    if version == SHORT then number = (now - now % 1000) / 1000 end
    base = (string.find(key, '{', 1, true) and key or key .. '{' .. key .. '}') .. ':'
    offset, front, first = 0, used, 0
  end
  -- It is of use until its last record has left. A clock that is not this server's gets a minute of drift.
  local life = (last + period - clock) / 1000
  life = math.floor(life + life / 8) + (given == 1 and 60001 or 1)
  call('SET', base .. number + count, records .. summed, 'PX', life)
  all, all_summed = with(all, all_summed, (unpack('>I7', records)), used - filed)
  version, count, filed, length = LONG, count + 1, used, 0
  rewrite(256, '', '', all, all_summed)
end

-- Cuts the newest records off, so that `used` is left.
cut = function()
  if used == 0 then return leave(0, count - 1) end
  local index, units, before, place, at = find(used)
  if index == count then
    if not at then error(BADSTATE) end
    local slot = (head + place) % slots
    call('SETRANGE', key, start + slot * 11 + 7, pack('>I4', units - before))
    length, last = place + 1, at
    if slot % BLOCK == BLOCK - 1 and length >= BLOCK then
      local block = read(ring(), place - BLOCK + 1, BLOCK)
      call('SETRANGE', key, start + slots * 11 + (slot - BLOCK + 1) / 16, sums(block))
    end
    return
  end
  local all, all_summed = entries(index)
  if at then
    -- The segment becomes the ring.
    local records = place > 0 and read(segment(index), 0, place) or ''
    leave(index, count - 1)
    count, filed, length, last = index, used - units, place + 1, at
    if count == 0 then offset, front = 0, 0 end
    records = records .. pack('>I7I4', at, units - before)
    rewrite(PAGE, records, sums(records), all, all_summed)
  else
    leave(index + 1, count - 1)
    all, all_summed = with(all, all_summed, time(directory(index), 0), units)
    count, filed, length = index + 1, used, 0
    if index == 0 then offset, front, oldest = PAGE, units, last end
    rewrite(256, '', '', all, all_summed)
  end
end

-- Takes so many units from the oldest records.
advance = function(gone)
  used = used - gone
  if used == 0 then return leave(0, count - 1) end
  local index, units, before, place, at, cost = find(gone + 1)
  drop(index)
  if at then
    local kept = cost - (units - 1 - before)
    forget(place, units - 1)
    oldest = at
    if kept < cost then
      local page = count > 0 and segment(0) or ring()
      call('SETRANGE', page.key, page.at + page.head * 11 + 7, pack('>I4', kept))
    end
  else
    forget(0, units - 1)
    oldest, offset = successor(0), PAGE
  end
end
