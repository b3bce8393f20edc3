-- Token bucket and leaky bucket: what was taken drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, where the units are explained.
--
-- A level above the capacity is what was booked ahead, or taken while the capacity was larger.
--
-- Leased units may be spent for a term after their charge, and do not drain before they are spent. In a term
-- `reserve` tokens drain. While leased units may be spent, the level does not fall below the reserve, and a
-- lease raises the level to the reserve first. So the level that counts units when they are spent is never
-- above this one.
--
-- State    string of 32 bytes: its beginning (7), at (7), level (7), token (7), drain (4); and, once units
--          were leased, 11 more: until when they may be spent (7), the reserve in tokens (4)
-- arg      burst (4), token (7): units of one token, drain (4): units that refill each microsecond; of a
--          limit that leases, also: reserve (4), term in microseconds (7)
-- moment   how far ahead at most a slot may be booked, the slot that is given back, or when units were
--          charged that are returned

local burst, token, drain = unpack('>I4I7I4', arg, from)
local capacity, MOST = burst * token, 9007199254740991
local reserve, term = 0, 0
if #arg > from + 14 then reserve, term = unpack('>I4I7', arg, from + 15) end

-- Each call.
local charge = cost * token
local state = call('GET', key)
local at, level, old_token, old_drain = 0, 0, token, drain
-- Until when leased units may be spent; the reserve in tokens, and in units.
local leased, kept, floor = 0, 0, 0
if state then
  if #state == 43 then leased, kept = unpack('>I7I4', state, 33)
  elseif #state ~= 32 then return { err = BADSTATE } end
  version, lives, at, level, old_token, old_drain = unpack('>I1I6I7I7I7I4', state)
  if version ~= VERSION then return { err = BADSTATE } end
end
local now = clock < at and at or clock
local lag, last, full = now - clock, level, nil

-- The level: as if this rate had been in force since the last change.
if old_token ~= token or old_drain ~= drain then
  -- How long until all that was taken has refilled at the rate it was taken under. The bucket is full
  -- then, whatever the rate is by now: the key has expired. At one rate a level says so by itself.
  full = at + math.ceil(level / old_drain) - now
  if leased > at then
    full = math.max(full, leased + math.ceil(math.min(kept * old_token, level) / old_drain) - now)
  end
  if full <= 0 then
    level = 0
  elseif old_token ~= token then
    level = math.min(math.ceil(level * token / old_token), MOST)
  end
end
local since = at
if leased > at then
  since = leased < now and leased or now
  floor = math.min(kept * token, level)
  level = math.max(level - (since - at) * drain, floor)
end
level = level - (now - since) * drain
if level < 0 then level = 0 end
if leased <= now then kept, floor = 0, 0 end
local standing = level
if reserve > 0 and (op == DECIDE or op == PEEK) then level = math.max(level, reserve * token) end

if op == UNBOOK then
  allowed = moment == at + math.ceil(math.max(last - capacity, 0) / old_drain)
else
  allowed = op == REFUND or op == RETURN or cost == 0 or level - capacity + charge <= 0
end
if not allowed and op ~= UNBOOK then
  local rest, wait = level, 0
  if capacity - charge < floor then
    wait = leased - now
    rest = math.max(level - wait * drain, floor)
  end
  retry = wait + math.ceil((rest - capacity + charge) / drain)
  if full and full < retry then retry = full end
  retry = retry + lag
  allowed = op == BOOK and retry <= moment and level + charge <= MOST
end
if allowed and cost > 0 and op ~= PEEK then
  if op == DECIDE or op == BOOK then
    level = level + charge
  elseif op == RETURN then
    -- What has drained since might have been drained from others.
    if level <= capacity and old_token == token and old_drain == drain then
      local drained = math.max(now - moment, 0) * drain
      level = math.max(level - math.max(math.min(charge, capacity) - drained, 0), floor)
    end
  elseif op == UNBOOK or level <= capacity then
    level = math.max(level - charge, 0)
  end
  full = nil
  changed = pack('>I7I7I7I4', now, level, token, drain)
  if reserve > 0 and op == DECIDE then
    leased, kept = math.max(leased, now + term), math.max(kept, reserve)
  end
  if leased > now then
    floor = math.min(kept * token, level)
    changed = changed .. pack('>I7I4', leased, kept)
  end
end

if level < capacity then
  local left = capacity - level
  remaining = (left - left % token) / token
end
if not changed then level = standing end
if level > 0 then
  reset, slack = math.ceil(level / drain), -level % drain
  if leased > now and reset < leased - now + math.ceil(floor / drain) then
    -- Calls behind this one, at the same moment, change nothing about that.
    reset, slack = leased - now + math.ceil(floor / drain), 4294967295
  end
  if full and full < reset then reset = full end
  reset = reset + lag
end
