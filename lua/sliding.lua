-- Exact sliding window: the log of what was admitted in the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding.rs.
--
-- One entry per admitted call, whatever its cost, holds its time and the running total up to and
-- including it; totals count modulo 2^32. The entries stand in a ring that grows with the log, up
-- to `threshold` of them, so that a call touches the header and one or two entries.
--
-- State    string: header of 41 bytes: its beginning (7), head (4), length (4), slots (4),
--          base (4): the total before the first entry, total (4) and time of the last entry (7),
--          time of the first (7); then `slots` entries of 11 bytes: time (7), total (4)
-- arg      threshold (4), period (7)
-- moment   when units were charged that are returned

local threshold, period = unpack('>I4I7', arg, from)
local HEADER, ENTRY, WRAP = 41, 11, 4294967296

-- Each call.
local state = call('GETRANGE', key, '0', '40')
local head, length, slots, base, total, last, oldest = 0, 0, 0, 0, 0, 0, 0
if state ~= '' then
  if #state ~= HEADER then return { err = BADSTATE } end
  version, lives, head, length, slots, base, total, last, oldest =
    unpack('>I1I6I4I4I4I4I4I7I7', state)
  if version ~= VERSION then return { err = BADSTATE } end
end
local now = clock < last and last or clock

-- The first of the entries from `low` on whose time is after `time` and whose total is at least
-- `sum` above the base, with its time and total. The last entry must be one. The entry at `low`
-- itself is the usual answer, and asked first.
local function search(low, time, sum)
  local high, middle = length - 1, low
  while low <= high do
    local from = HEADER + (head + middle) % slots * ENTRY
    local at, upto = unpack('>I7I4', call('GETRANGE', key, from, from + ENTRY - 1))
    if at > time and (upto - base) % WRAP >= sum then
      if middle == low then return low, at, upto end
      high = middle
    else
      low = middle + 1
    end
    middle = math.floor((low + high) / 2)
  end
  error(BADSTATE)
end

-- Entries at `now - period` and before have left the window.
if length > 0 and oldest + period <= now then
  if last + period <= now then
    head, length, base, total = 0, 0, 0, 0
  else
    local first, at = search(1, now - period, 0)
    local _, _, gone = search(first - 1, -1, 0)
    head, length, base, oldest = (head + first) % slots, length - first, gone, at
  end
end
local used = (total - base) % WRAP

allowed = op >= REFUND or cost == 0 or used + cost <= threshold
if not allowed then
  -- The call fits once all that is too much has left.
  local excess, blocker = used + cost - threshold, oldest
  if excess > 1 then
    local _, at = search(0, -1, excess)
    blocker = at
  end
  retry = blocker + period - clock
elseif cost > 0 and op == DECIDE then
  if length == slots then
    -- A full ring is written anew in order, twice as large.
    local ring = ''
    if slots > 0 then
      local from = HEADER + head * ENTRY
      ring = call('GETRANGE', key, from, -1) .. call('GETRANGE', key, HEADER, from - 1)
    end
    local grown = math.min(math.max(slots * 2, 8), threshold)
    ring = ring .. string.rep('\0', (grown - slots) * ENTRY)
    local header = state ~= '' and state or string.rep('\0', HEADER)
    call('SET', key, header .. ring, 'KEEPTTL')
    head, slots = 0, grown
  end
  if length == 0 then oldest = now end
  total, last, used = (total + cost) % WRAP, now, used + cost
  local from = HEADER + (head + length) % slots * ENTRY
  call('SETRANGE', key, from, pack('>I7I4', now, total))
  length = length + 1
elseif cost > 0 and op == REFUND and slots > 0 then
  -- The newest go first; the last of those that stay may give up a part.
  used = math.max(used - cost, 0)
  if used > 0 then
    local index, at = search(0, -1, used)
    total, last, length = (base + used) % WRAP, at, index + 1
    local from = HEADER + (head + index) % slots * ENTRY
    call('SETRANGE', key, from, pack('>I7I4', last, total))
  end
elseif cost > 0 and op == RETURN and slots > 0 and moment + period > now then
  -- The oldest go first: those that are left leave no earlier than those that stay in truth.
  local gone = math.min(cost, used)
  used = used - gone
  if used > 0 then
    local index, at = search(0, -1, gone + 1)
    head, length, base, oldest = (head + index) % slots, length - index, (base + gone) % WRAP, at
  end
end
if allowed and cost > 0 and op ~= PEEK and slots > 0 then
  changed = pack('>I4I4I4I4I4I7I7', head, length, slots, base, total, last, oldest)
end

if used < threshold then remaining = threshold - used end
if used > 0 then reset = last + period - clock end
