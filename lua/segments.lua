-- The slow paths of `log.lua`, which explains the state: calls that move over many records, fill the ring,
-- or remove records at the ends of the log. Twin of ratelimit-runtime/src/algorithm/sliding/pages.rs.
--
-- A walk over a page, see `pages.lua`, reads two blocks and the sums. The sum of a block is valid once the block is
-- full. A walk always adds the records of the first block one by one: some of them may be gone, and the first
-- record may have lost a part of its units.
--
-- Redis may evict a segment, and a hash slot of a cluster may move to another node. A segment that cannot be read
-- counts as a whole, by its units in the directory, until the next segment begins to leave the window. So no call is
-- admitted too early. `offset` is then 4,096.
--
-- Reads of segments do not fail, and a call creates segments before it changes another key. So what a call writes is
-- never left half done.
--
-- SHORT, LONG  the versions of a state without segments, and of one with a directory
-- BORN         the difference of the version of a state with a birth
-- log          see `pages.lua`
--
-- Returns functions on the log: expire, blocker, grow, cut and trim.

--@include pages

local function long_log(call, pack, unpack, SHORT, LONG, BORN, log)
  local BLOCK, PAGE, MOST_SLOTS, HUGE = 64, 4096, 65535, math.huge
  local _, ring, directory, segment, bytes, read = log_pages(call, pack, unpack, log)

  local function time(page, index)
    local record = read(page, index, 1)
    return #record == 11 and unpack('>I7', record) or nil
  end

  -- Returns how many records are at `moment` or before; nil if the page cannot be read.
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

  -- Walks from the first record to the record in which `units` are reached, or to the index `stop`. Returns
  -- the units before that record, its index, its time and its cost; without the time and the cost if the record
  -- does not exist or cannot be read.
  local function walk(page, units, stop)
    local index, before, sums = 0, 0, nil
    while index < page.length do
      local slot = (page.head + index) % page.slots
      local size = math.min(BLOCK - slot % BLOCK, page.slots - slot, page.length - index)
      local sum = HUGE
      if index > 0 and size == BLOCK and index + BLOCK <= stop then
        local from = page.at + page.slots * 11
        sums = sums or bytes(page, from, from + (page.slots - page.slots % BLOCK) / 16 - 1)
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

  -- Returns the time of the first record after a segment. A segment that cannot be read counts until that record
  -- leaves the window.
  local function successor(index)
    if index + 1 < log.count then return time(directory(index + 1), 0) end
    return log.length > 0 and time(ring(), 0) or log.last
  end

  -- Finds the record in which the log reaches `units`. Returns the index of its segment (`count` for the ring),
  -- the part of `units` in its page, and the results of `walk`.
  local function find(units)
    local index, page = 0, nil
    if units > log.filed then
      index, units, page = log.count, units - log.filed, ring()
    else
      if units > log.front then
        units = units - log.front
        local before, behind = walk(directory(1), units, HUGE)
        index, units = behind + 1, units - before
      end
      page = segment(index)
    end
    return index, units, walk(page, units, HUGE)
  end

  -- Marks at most 16 segments for removal. The keys of the others expire.
  local function leave(from, upto)
    local left, name = log.left, log.number
    for index = from, math.min(from + 15, upto) do left[#left + 1] = log.base .. name + index end
  end

  -- Drops the first `segments` segments. The caller subtracts their units from `used`.
  local function drop(segments)
    if segments == 0 then return end
    leave(0, segments - 1)
    local units, _, at, cost = walk(directory(1), HUGE, segments - 1)
    log.filed = log.filed - log.front - units
    log.number, log.first = log.number + segments, log.first + segments
    log.count, log.offset = log.count - segments, 0
    log.front, log.oldest = cost or 0, at or log.length > 0 and time(ring(), 0) or log.last
    if log.count == 0 then log.filed, log.first = 0, 0 end
  end

  -- Removes the first `records` records of the first page, which have `units` units in total.
  local function forget(records, units)
    if log.count > 0 then
      log.offset = log.offset + records
      log.front, log.filed = math.max(log.front - units, 0), math.max(log.filed - units, 0)
    else
      log.head, log.length = (log.head + records) % log.slots, log.length - records
    end
  end

  -- Removes the records without units at the beginning of the log.
  local function skip()
    local index, _, _, place, at = find(1)
    drop(index)
    if at then
      forget(place, 0)
      log.oldest = at
    else
      log.oldest, log.offset = successor(0), PAGE
    end
  end

  -- Removes the records at `moment` and before.
  local function expire(moment)
    if log.count > 0 then
      local before = log.filed
      local begun = seek(directory(0), moment)
      if begun == log.count and log.length > 0 and time(ring(), 0) <= moment then
        drop(log.count)
      else
        drop(math.max(begun - 1, 0))
        local page = segment(0)
        local gone = log.offset < PAGE and seek(page, moment)
        local units, _, at
        if gone then units, _, at = walk(page, HUGE, gone) end
        if at then
          forget(gone, math.min(units, log.front))
          log.oldest = at
        elseif gone == page.length then
          drop(1)
        else
          log.oldest, log.offset = successor(0), PAGE
        end
      end
      log.used = log.used - (before - log.filed)
    end
    if log.count == 0 and log.length > 0 then
      local gone = seek(ring(), moment)
      local units, _, at = walk(ring(), HUGE, gone)
      forget(gone, units)
      log.used, log.oldest = log.used - units, at or log.last
    end
    if log.used > 0 then skip() end
  end

  -- Returns the time of the last record that must leave the window for the oldest `units` units to leave it.
  local function blocker(units)
    local index, _, _, _, at = find(units)
    return at or successor(index)
  end

  -- Returns the sum of each whole block of these records.
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

  -- Returns the first `size` records of the directory, from the start of their first block on, and the sums of the
  -- whole blocks.
  local function entries(size)
    if size == 0 then return '', '' end
    local page = directory(0)
    local gone, from = log.first % BLOCK, page.at + page.slots * 11
    local upto = page.at + (log.first + size) * 11 - 1
    local records = call('GETRANGE', log.key, page.at + (log.first - gone) * 11, upto)
    local whole = (gone + size - (gone + size) % BLOCK) / 16
    from = from + (log.first - gone) / 16
    return records, whole > 0 and call('GETRANGE', log.key, from, from + whole - 1) or ''
  end

  -- Returns these records and sums with one more record.
  local function with(records, summed, at, units)
    records = records .. pack('>I7I4', at, units)
    if #records % (BLOCK * 11) == 0 then summed = summed .. sums(string.sub(records, -BLOCK * 11)) end
    return records, summed
  end

  -- Replaces the state by a ring of `size` slots, which begins with these records and sums, and a directory.
  -- BLANK saves time: `string.rep` of one byte costs four times as much for each byte as of a longer string.
  local BLANK = string.rep('\0', BLOCK)
  local function rewrite(size, records, summed, entries, entries_summed)
    log.start = (log.version == LONG and 53 or 29) + (log.birth and 7 or 0)
    local blank, whole = size * 11 - #records, (size - size % BLOCK) / 16
    local version = log.version + (log.birth and BORN or 0)
    call('SET', log.key, pack('>I1I4', version, log.lives) .. string.rep('\0', log.start - 5) .. records
      .. string.rep(BLANK, (blank - blank % BLOCK) / BLOCK) .. string.rep('\0', blank % BLOCK)
      .. summed .. string.rep('\0', whole - #summed) .. entries .. entries_summed, 'KEEPTTL')
    log.head, log.slots, log.first = 0, size, entries ~= '' and log.first % BLOCK or 0
  end

  -- Moves 4,096 records, with their sums, to a new segment. Returns their units; nil if this node cannot create the
  -- segment, because the hash slot moves to another node.
  local function file(records, summed)
    -- The TTL lasts until the last record of the segment has left the window, and an eighth longer. If the clock
    -- is not this server's, the TTL is another minute longer.
    local life = (log.last + log.period - log.clock) / 1000
    life = math.floor(life + life / 8) + (log.given and 60001 or 1)
    -- A ring that cannot be larger raises the error.
    local set = log.slots + PAGE > MOST_SLOTS and call or redis.pcall
    local done = set('SET', log.base .. log.number + log.count, records .. summed, 'PX', life)
    if done.err then return end
    local units = 0
    for from = 1, #summed, 4 do units = units + unpack('>I4', summed, from) end
    if log.count == 0 then log.offset, log.front, log.first = 0, units, 0 end
    log.version, log.count, log.filed = LONG, log.count + 1, log.filed + units
    return units
  end

  -- Makes room for a record in a full ring: doubles the ring, or moves its records to segments. While this node cannot
  -- create segments, the ring grows by 4,096 slots at a time, up to 61,440.
  local function grow()
    local from, behind = log.start + log.head * 11, log.start + log.slots * 11
    local records, summed = call('GETRANGE', log.key, from, behind - 1), nil
    if log.head == 0 then
      -- The blocks and their sums do not change.
      local whole = (log.slots - log.slots % BLOCK) / 16
      summed = whole > 0 and call('GETRANGE', log.key, behind, behind + whole - 1) or ''
    else
      records = records .. call('GETRANGE', log.key, log.start, from - 1)
      summed = sums(records)
    end
    local all, all_summed = entries(log.count)
    if log.slots < PAGE then
      local size = log.slots * 2
      if log.slots < log.threshold then size = math.min(size, log.threshold) end
      return rewrite(math.min(size, PAGE), records, summed, all, all_summed)
    end
    if log.count == 0 then
      -- The number is new, because a reset may still be removing the segments of an older log.
      if log.version == SHORT then log.number = (log.now - log.now % 1000) / 1000 end
      local tag = string.find(log.key, '{', 1, true) and '' or '{' .. log.key .. '}'
      log.base = log.key .. tag .. ':'
    end
    while #records > 0 do
      local units = file(string.sub(records, 1, PAGE * 11), string.sub(summed, 1, PAGE / 16))
      if not units then break end
      all, all_summed = with(all, all_summed, (unpack('>I7', records)), units)
      records, summed = string.sub(records, PAGE * 11 + 1), string.sub(summed, PAGE / 16 + 1)
    end
    log.length = #records / 11
    rewrite(log.length == 0 and 256 or log.length + PAGE, records, summed, all, all_summed)
  end

  -- Removes the newest `gone` units. The log has at least as many.
  local function cut(gone)
    log.used = log.used - gone
    if log.used == 0 then return leave(0, log.count - 1) end
    local index, units, before, place, at = find(log.used)
    if index == log.count then
      if not at then error('BADSTATE not the state of a rate limit') end
      local slot = (log.head + place) % log.slots
      call('SETRANGE', log.key, log.start + slot * 11 + 7, pack('>I4', units - before))
      log.length, log.last = place + 1, at
      if slot % BLOCK == BLOCK - 1 and log.length >= BLOCK then
        local block = read(ring(), place - BLOCK + 1, BLOCK)
        call('SETRANGE', log.key, log.start + log.slots * 11 + (slot - BLOCK + 1) / 16, sums(block))
      end
      return
    end
    local all, all_summed = entries(index)
    if at then
      -- The segment becomes the ring.
      local records = place > 0 and read(segment(index), 0, place) or ''
      leave(index, log.count - 1)
      log.count, log.filed, log.length, log.last = index, log.used - units, place + 1, at
      if log.count == 0 then log.offset, log.front = 0, 0 end
      records = records .. pack('>I7I4', at, units - before)
      rewrite(PAGE, records, sums(records), all, all_summed)
    else
      leave(index + 1, log.count - 1)
      all, all_summed = with(all, all_summed, time(directory(index), 0), units)
      log.count, log.filed, log.length = index + 1, log.used, 0
      if index == 0 then log.offset, log.front, log.oldest = PAGE, units, log.last end
      rewrite(256, '', '', all, all_summed)
    end
  end

  -- Removes the records without units at both ends of the log.
  local function trim()
    if log.used > 0 then skip() end
    cut(0)
  end

  return expire, blocker, grow, cut, trim
end
