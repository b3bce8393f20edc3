-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State    string of 11 bytes: start (7), count (4)
-- ARGV[1]  after the prelude's: 1 when aligned (1), how far calendar boundaries lie before
--          multiples of the period since the epoch (7)

local aligned, shift = struct.unpack('>I1I7', arg, rest)

local state = call('GET', key)
local start, count = 0, 0
if state then
  if #state ~= 11 then return redis.error_reply('BADSTATE not the state of a rate limit') end
  start, count = struct.unpack('>I7I4', state)
end
local now = clock < start and start or clock

-- Aligned, a window begins at the boundary; else where its first admitted call came.
if aligned == 1 then
  local boundary = now - (now + shift) % period
  if start < boundary then count = 0 end
  start = boundary
elseif count == 0 or start + period <= now then
  start, count = now, 0
end
local left = start + period - clock

allowed = op == REFUND or cost == 0 or count + cost <= threshold
if not allowed then
  retry = left
elseif cost > 0 and op ~= PEEK then
  count = op == REFUND and math.max(count - cost, 0) or count + cost
  changed = struct.pack('>I7I4', start, count)
end

if count < threshold then remaining = threshold - count end
if count > 0 then reset = left end
