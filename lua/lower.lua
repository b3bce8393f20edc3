-- Gives units of a sliding log back to the charges that took them: lowers the records of a page. Most settlements need
-- nothing else, so this takes few commands: it guesses the place of a record from its time, and reads the records
-- around that place. Twin of `Page::lower` in ratelimit-runtime/src/algorithm/sliding/short.rs.
--
-- A page is a sequence of records with the sums of their blocks, see `segments.lua`:
--
-- key     the key of the page
-- start   the position of its slots
-- head    the first slot in use
-- slots   all slots of the page
-- length  the slots in use

-- Subtracts units from a record with `cost` units, and from the sum of its block if that is valid.
local function subtract(call, pack, unpack, key, start, head, slots, length, index, cost, units)
  local slot = (head + index) % slots
  call('SETRANGE', key, string.format('%d', start + slot * 11 + 7), pack('>I4', cost - units))
  local place = slot % 64
  if index >= place and index - place + 64 <= length and slot - place + 64 <= slots then
    local from = start + slots * 11 + (slot - place) / 16
    local sum = unpack('>I4', call('GETRANGE', key, from, from + 3))
    call('SETRANGE', key, from, pack('>I4', sum - units))
  end
end

-- Removes up to `units` of the records at the time `at`, from the newest of them on.
--
-- read       `call`, or `redis.pcall` for a page that may be on another node
-- low, high  the times of about the first and the last record; without `high`, the newest records are read first
--
-- Returns the removed units; the length of the page without the last records that have no units left; the time of the
-- last record if that has changed; whether the first record has no units left.
local function lower(call, read, pack, unpack, key, start, head, slots, length, low, high, at, units)
  -- The records that were read: from the index `from` to the index before `upto`.
  local from, upto, records = 0, 0, ''
  -- Reads the record with this index and at most 63 others, `before` of them before it. Their slots are contiguous.
  local function load(index, before)
    from = math.max(math.min(index - before, length - 64), 0)
    upto = math.min(from + 64, length)
    local slot = (head + from) % slots
    local wraps = from + slots - slot
    if wraps <= index then
      from, slot = wraps, 0
    elseif wraps < upto then
      upto = wraps
    end
    local place = start + slot * 11
    records = read('GETRANGE', key, place, place + (upto - from) * 11 - 1)
    return #records == (upto - from) * 11
  end

  -- Finds how many records are at `at` or before.
  local index, behind, guesses, rate = 0, length, 0, 0
  while index < behind do
    local place = behind - 1
    if guesses > 3 then
      place = math.floor((index + behind) / 2)
    elseif high and low and high > low then
      place = index + (behind - index) * (at - low) / (high - low)
    elseif high then
      -- Assumes that the records are as dense in time as the records that were read.
      place = behind - (high - at) * rate
    end
    guesses = guesses + 1
    place = math.floor(math.max(math.min(place, behind - 1), index))
    if not load(place, high and 32 or 63) then return 0, length end
    local first, last = math.max(from, index), math.min(upto, behind) - 1
    local oldest = unpack('>I7', records, (first - from) * 11 + 1)
    local newest = unpack('>I7', records, (last - from) * 11 + 1)
    if oldest > at then
      rate = newest > oldest and (last - first) / (newest - oldest) or 1
      behind, high = first, oldest
    elseif newest <= at then
      index, low = last + 1, newest
    else
      index, behind = first + 1, last
      while index < behind do
        local middle = math.floor((index + behind) / 2)
        if unpack('>I7', records, (middle - from) * 11 + 1) <= at then index = middle + 1 else behind = middle end
      end
      behind = index
    end
  end

  -- Lowers the records. If the last one has no units left, goes on to the last one that has.
  local gone, shortens, empties = 0, false, false
  while index > 0 and (gone < units or shortens) do
    index = index - 1
    if (index < from or index >= upto) and not load(index, 63) then break end
    local time, cost = unpack('>I7I4', records, (index - from) * 11 + 1)
    if time == at and gone < units then
      local part = math.min(cost, units - gone)
      if part > 0 then
        subtract(call, pack, unpack, key, start, head, slots, length, index, cost, part)
        gone, cost = gone + part, cost - part
        shortens = shortens or cost == 0 and index == length - 1
        empties = cost == 0 and index == 0
      end
    elseif not shortens then
      break
    end
    if shortens and cost > 0 then return gone, index + 1, time, empties end
  end
  return gone, shortens and 0 or length, nil, empties
end
