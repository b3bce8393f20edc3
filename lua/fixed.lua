-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State    string of 18 bytes: its beginning (7), start (7), count (4)
-- arg      threshold (4), period (7), 1 when aligned (1), how far calendar boundaries lie before
--          multiples of the period since the epoch (7)
-- moment   when units were charged that are returned

local threshold, period, aligned, shift = unpack('>I4I7I1I7', arg, from)

-- Each call.
local state = call('GET', key)
local start, count = 0, 0
if state then
  if #state ~= 18 then return { err = BADSTATE } end
  version, lives, start, count = unpack('>I1I6I7I4', state)
  if version ~= VERSION then return { err = BADSTATE } end
end
local now = clock < start and start or clock

-- Aligned, a window begins at the boundary; else where its first admitted call came. A boundary
-- before the epoch counts as the epoch.
local left
if aligned == 1 then
  local elapsed = (now + shift) % period
  local boundary = math.max(now - elapsed, 0)
  if start < boundary then count = 0 end
  start, left = boundary, now - elapsed + period - clock
else
  if count == 0 or start + period <= now then start, count = now, 0 end
  left = start + period - clock
end

allowed = op == REFUND or op == RETURN or cost == 0 or count + cost <= threshold
if not allowed then
  retry = left
elseif cost > 0 and op ~= PEEK then
  if op == DECIDE then
    count = count + cost
  else
    local charged = op == RETURN and moment or start
    -- Only what this window has counted.
    if start <= charged and charged < clock + left then count = math.max(count - cost, 0) end
  end
  changed = pack('>I7I4', start, count)
end

if count < threshold then remaining = threshold - count end
if count > 0 then reset = left end
