-- The beginning of every script: its arguments, the time, and the two things all of them do at the
-- end, keeping the TTL and replying. It is put in front of the algorithm's own text.
--
-- KEYS[1]  the key
-- ARGV[1]  one packed string, big-endian (one unpack costs less than six `tonumber`):
--            1 byte   op: 0 decide, 1 peek, 2 refund
--            1 byte   1 when the clock is in the arguments, 0 to ask this server
--            7 bytes  clock, microseconds since the epoch
--            4 bytes  cost
--            4 bytes  threshold
--            7 bytes  period, microseconds
--          and, from `rest` on, what the algorithm itself takes
--
-- All numbers are integers below 2^53, exact in Lua's doubles.

local DECIDE, PEEK, REFUND = 0, 1, 2
local call, key, arg = redis.call, KEYS[1], ARGV[1]
local op, given, clock, cost, threshold, period, rest = struct.unpack('>I1I1I7I4I4I7', arg)
if given == 0 then
  local time = call('TIME')
  clock = time[1] * 1000000 + time[2]
end

-- Makes sure that the key lives for `life` more microseconds. A TTL that still suffices is left as
-- it is: reading it costs less than setting it, so it is set an eighth longer than needed. A clock
-- that is not this server's gets a minute of drift.
local function keep(life)
  local need = math.ceil(life / 1000) + given * 60000
  if call('PTTL', key) < need then
    call('PEXPIRE', key, need + math.floor(need / 8) + 1)
  end
end

-- The reply: allowed, what remains, and the two waits in microseconds from the clock.
local function reply(allowed, remaining, retry, reset)
  return struct.pack('>I1I4I7I7', allowed and 1 or 0, remaining, retry, reset)
end

local function foreign()
  return redis.error_reply('BADSTATE the key does not hold the state of a rate limit')
end

