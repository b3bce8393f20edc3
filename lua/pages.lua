-- The pages of a sliding log, whose state `log.lua` explains. A page is a sequence of records: the ring, the
-- directory, or a segment. Each block of 64 slots of a page has a sum.
--
-- log  table: the variables of `log.lua` with these names: key, clock, given, threshold, period, now, base, left,
--      version, lives, birth, start, head, length, slots, used, last, oldest, number, count, offset, front, filed and
--      first
--
-- Returns functions on the log: give_back; ring, directory and segment, which return a page as it is now; bytes and
-- read.

--@include lower

local function log_pages(call, pack, unpack, log)
  local BLOCK, PAGE = 64, 4096

  local function ring()
    return { key = log.key, at = log.start, head = log.head, slots = log.slots, length = log.length }
  end

  -- Returns the directory from the segment with this index on. The first segment has index 0.
  local function directory(index)
    local at = log.start + log.slots * 11 + (log.slots - log.slots % BLOCK) / 16
    local head, slots = log.first + index, log.first + log.count
    return { key = log.key, at = at, head = head, slots = slots, length = log.count - index }
  end

  local function segment(index)
    local gone = index == 0 and log.offset or 0
    local name = log.base .. log.number + index
    return { key = name, at = 0, head = gone, slots = PAGE, length = PAGE - gone }
  end

  -- Returns bytes of the value of a page; fewer if they cannot be read. GETRANGE fails on a segment that is on another
  -- node.
  local function bytes(page, from, upto)
    if page.key == log.key then return call('GETRANGE', page.key, from, upto) end
    local read = redis.pcall('GETRANGE', page.key, from, upto)
    return type(read) == 'string' and read or ''
  end

  -- Returns the bytes of `size` records from an index on. Their slots must be contiguous.
  local function read(page, index, size)
    local from = page.at + (page.head + index) % page.slots * 11
    return bytes(page, from, from + size * 11 - 1)
  end

  -- Removes up to `units` of the records at the time `at`, from the newest of them on: of the ring, if `in_ring`, and
  -- of the segments. Records of one time can be in several pages. Returns whether records at an end of the log may have
  -- no units left.
  local function give_back(at, units, in_ring)
    local rest, is_ragged = units, log.length == 0
    local function lower_page(page, low, high)
      local reads = page.key == log.key and call or redis.pcall
      local gone, length, last, empties = lower(call, reads, pack, unpack, page.key, page.at, page.head, page.slots,
        page.length, low, high, at, rest)
      rest = rest - gone
      return gone, empties, length, last
    end
    if in_ring and log.length > 0 then
      local is_first = log.count == 0
      local _, empties, length, last = lower_page(ring(), is_first and log.oldest, is_first and log.last)
      log.length, log.last = length, last or log.last
      is_ragged = length == 0 or is_first and empties
    end
    local list, from, entries, high = directory(0), log.count, nil, nil
    for index = log.count - 1, 0, -1 do
      if rest == 0 then break end
      if index < from then
        from = math.max(index - 63, 0)
        entries = read(list, from, index - from + 1)
      end
      local low, counted = unpack('>I7I4', entries, (index - from) * 11 + 1)
      if low <= at then
        local gone, empties = lower_page(segment(index), index == 0 and log.oldest or low, high)
        if gone > 0 then
          subtract(call, pack, unpack, list.key, list.at, list.head, list.slots, list.length, index, counted, gone)
          -- The units of the first segment that still count are in `front`.
          if index == 0 then log.front = log.front - gone end
          log.filed = log.filed - gone
        end
        is_ragged = is_ragged or index == 0 and empties
        if low < at then break end
      end
      high = low
    end
    log.used = log.used - (units - rest)
    return is_ragged or log.used == 0
  end

  return give_back, ring, directory, segment, bytes, read
end
