-- Token bucket and leaky bucket: what was taken drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, where the units are explained.
--
-- A level above the capacity is what was booked ahead, or taken while the capacity was larger.
--
-- State    string of 32 bytes: its beginning (7), at (7), level (7), token (7), drain (4)
-- arg      burst (4), token (7): units of one token, drain (4): units that refill each microsecond
-- moment   how far ahead at most a slot may be booked, the slot that is given back, or when units were
--          charged that are returned

local burst, token, drain = unpack('>I4I7I4', arg, from)
local capacity, MOST = burst * token, 9007199254740991

-- Each call.
local charge = cost * token
local state = call('GET', key)
local at, level, old_token, old_drain = 0, 0, token, drain
if state then
  if #state ~= 32 then return { err = BADSTATE } end
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
  if full <= 0 then
    level = 0
  elseif old_token ~= token then
    level = math.min(math.ceil(level * token / old_token), MOST)
  end
end
level = level - (now - at) * drain
if level < 0 then level = 0 end

if op == UNBOOK then
  allowed = moment == at + math.ceil(math.max(last - capacity, 0) / old_drain)
else
  allowed = op == REFUND or op == RETURN or cost == 0 or level - capacity + charge <= 0
end
if not allowed and op ~= UNBOOK then
  retry = math.ceil((level - capacity + charge) / drain)
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
      level = math.max(level - math.max(math.min(charge, capacity) - drained, 0), 0)
    end
  elseif op == UNBOOK or level <= capacity then
    level = math.max(level - charge, 0)
  end
  full = nil
  changed = pack('>I7I7I7I4', now, level, token, drain)
end

if level < capacity then
  local left = capacity - level
  remaining = (left - left % token) / token
end
if level > 0 then
  reset, slack = math.ceil(level / drain), -level % drain
  if full and full < reset then reset = full end
  reset = reset + lag
end
