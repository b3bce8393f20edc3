-- Token bucket and leaky bucket: what was taken drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, where the units are explained.
--
-- A level above the capacity is what was booked ahead, or taken while the capacity was larger.
--
-- State    string of 32 bytes: its beginning (7), at (7), level (7), token (7), drain (4)
-- arg      after the prelude's: burst (4), token (7): units of one token,
--          drain (4): units that refill each microsecond, and of two ops that only buckets know:
--            3 book (7): admit, if need be for a slot at most so many microseconds ahead
--            4 unbook (7): give back what was booked for this time, if nobody booked behind it
--          in the same place, of a return, when it was charged

local BOOK, UNBOOK, MOST = 3, 4, 9007199254740991
local burst, token, drain, slot = struct.unpack('>I4I7I4I7', arg, rest)
local capacity, charge = burst * token, cost * token

local state = call('GET', key)
local at, level, old_token, old_drain = 0, 0, token, drain
if state then
  if #state ~= 32 or string.byte(state) ~= VERSION then return { err = BADSTATE } end
  at, level, old_token, old_drain = struct.unpack('>I7I7I7I4', state, 8)
end
local now = clock < at and at or clock
local lag, last = now - clock, level

-- How long until all that was taken has refilled at the rate it was taken under. The bucket is full
-- then, whatever the rate is by now: the key has expired.
local full = at + math.ceil(level / old_drain) - now

-- The level: as if this rate had been in force since the last change.
if full <= 0 then
  level = 0
else
  if old_token ~= token then level = math.ceil(level * token / old_token) end
  if level > MOST then level = MOST end
  level = level - (now - at) * drain
  if level < 0 then level = 0 end
end

if op == UNBOOK then
  allowed = slot == at + math.ceil(math.max(last - capacity, 0) / old_drain)
else
  allowed = op == REFUND or op == RETURN or cost == 0 or level - capacity + charge <= 0
end
if not allowed and op ~= UNBOOK then
  retry = math.min(math.ceil((level - capacity + charge) / drain), full) + lag
  allowed = op == BOOK and retry <= slot and level + charge <= MOST
end
if allowed and cost > 0 and op ~= PEEK then
  if op == DECIDE or op == BOOK then
    level = level + charge
  elseif op == RETURN then
    -- What has drained since might have been drained from others.
    if level <= capacity and old_token == token and old_drain == drain then
      local drained = math.max(now - slot, 0) * drain
      level = math.max(level - math.max(math.min(charge, capacity) - drained, 0), 0)
    end
  elseif op == UNBOOK or level <= capacity then
    level = math.max(level - charge, 0)
  end
  full = math.ceil(level / drain)
  changed = struct.pack('>I7I7I7I4', now, level, token, drain)
end

remaining = math.floor(math.max(capacity - level, 0) / token)
if level > 0 then
  reset = math.min(math.ceil(level / drain), full) + lag
  slack = (drain - level % drain) % drain
end
