-- Token bucket and leaky bucket: what was taken drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, where the units are explained.
--
-- State    string of 25 bytes: at (7), level (7), token (7), drain (4)
-- ARGV[1]  after the prelude's: burst (4), token (7): units of one token,
--          drain (4): units that refill each microsecond

local burst, token, drain = struct.unpack('>I4I7I4', arg, rest)
local capacity, charge = burst * token, cost * token

local state = call('GET', key)
local at, level, old_token, old_drain = 0, 0, token, drain
if state then
  if #state ~= 25 then return foreign() end
  at, level, old_token, old_drain = struct.unpack('>I7I7I7I4', state)
end
local now = math.max(clock, at)
local lag = now - clock

-- How long until all that was taken has refilled at the rate it was taken under. The bucket is full
-- then, whatever the rate is by now: the key has expired.
local full = math.max(at + math.ceil(level / old_drain) - now, 0)

-- The level: as if this rate had been in force since the last change, and never above its capacity.
if full == 0 then
  level = 0
else
  if old_token ~= token then level = math.ceil(level * token / old_token) end
  level = math.max(math.min(level, capacity) - (now - at) * drain, 0)
end

local allowed = op == REFUND or cost == 0 or level + charge <= capacity
local retry = 0
if not allowed then
  retry = math.min(math.ceil((level + charge - capacity) / drain), full) + lag
  if call('PTTL', key) < 0 then keep(full + lag) end
elseif cost > 0 and op ~= PEEK then
  level = op == REFUND and math.max(level - charge, 0) or level + charge
  full = math.ceil(level / drain)
  if level == 0 then
    call('DEL', key)
  else
    call('SETRANGE', key, 0, struct.pack('>I7I7I7I4', now, level, token, drain))
    keep(full + lag)
  end
end

local reset = level == 0 and 0 or math.min(math.ceil(level / drain), full) + lag
return reply(allowed, math.floor((capacity - level) / token), retry, reset)
