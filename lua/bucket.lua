-- Token bucket and leaky bucket: what was taken drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, where the units are explained.
--
-- State    string of 26 bytes: version (1), at (7), level (7), token (7), drain (4)
-- ARGV[1]  after the prelude's: burst (4), token (7): units of one token,
--          drain (4): units that refill each microsecond

local burst, token, drain = struct.unpack('>I4I7I4', arg, rest)
local capacity, charge = burst * token, cost * token

local state = call('GET', key)
local at, level, old_token, old_drain = 0, 0, token, drain
if state then
  if #state ~= 26 or string.byte(state) ~= VERSION then return { err = BADSTATE } end
  at, level, old_token, old_drain = struct.unpack('>I7I7I7I4', state, 2)
end
local now = clock < at and at or clock
local lag = now - clock

-- How long until all that was taken has refilled at the rate it was taken under. The bucket is full
-- then, whatever the rate is by now: the key has expired.
local full = at + math.ceil(level / old_drain) - now

-- The level: as if this rate had been in force since the last change, and never above its capacity.
if full <= 0 then
  level = 0
else
  if old_token ~= token then level = math.ceil(level * token / old_token) end
  if level > capacity then level = capacity end
  level = level - (now - at) * drain
  if level < 0 then level = 0 end
end

allowed = op == REFUND or cost == 0 or level + charge <= capacity
if not allowed then
  retry = math.min(math.ceil((level + charge - capacity) / drain), full) + lag
elseif cost > 0 and op ~= PEEK then
  level = op == REFUND and math.max(level - charge, 0) or level + charge
  full = math.ceil(level / drain)
  changed = struct.pack('>I1I7I7I7I4', VERSION, now, level, token, drain)
end

remaining = math.floor((capacity - level) / token)
if level > 0 then reset = math.min(math.ceil(level / drain), full) + lag end
