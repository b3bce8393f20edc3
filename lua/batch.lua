-- Decides calls that are independent of each other. Calls of one key, one limit and one cost are equal. Equal calls are
-- one entry with a count: the script admits as many of them as if they came one after the other.
--
-- KEYS[i]          the key of entry i. If there are none, the keys can be in any hash slots of a node: they are the
--                  last arguments, one for each entry. A key of another node fails, and no other
-- ARGV[1]          for each entry its limit (1), its cost (7), the birth (7) if its calls need receipts or 0, and its
--                  count (4)
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The first has the clock (7) and the replies to the entries. The
--                  reply to an entry begins with its kind (1):
--                  0  the entry failed
--                  1  the number of admitted calls (4), the reply to the last admitted call if there is one, with the
--                     receipt of all of them, and the reply to the rejected calls if there are any, see `answer.lua`
--                  2  the number of admitted calls (4) and the level of the bucket (7), see `usual.lua`

--@include prelude

local are_declared = #KEYS > 0
if not are_declared then
  -- The other files read KEYS and the limits in ARGV, so this comes first. An entry of ARGV[1] has 19 bytes.
  local count = #ARGV[1] / 19
  local others = #ARGV - count
  KEYS = {}
  for entry = 1, count do KEYS[entry], ARGV[others + entry] = ARGV[others + entry], nil end
end

--@include several, each, usual

-- Reads the values of all keys at once, if that helps. `MGET` reads the keys of one slot only.
local values = are_declared and are_all_buckets and #KEYS > 1 and call('MGET', unpack_list(KEYS)) or {}
local entries = ARGV[1]

-- Decides `count` equal calls: peeks how many fit, and charges these at once. Returns the reply to their entry.
local function ask_equal(limit, key, cost, birth, count)
  local _, allowed, remaining = unpack('>I7I1I7', ask(limit, key, 'peek', 0))
  local admitted = 0
  if cost > 0 then
    admitted = math.min(count, math.floor(remaining / cost))
  elseif allowed == 1 then
    admitted = count
  end
  local reply = pack('>I1I4', 1, admitted)
  if admitted > 0 then reply = reply .. ask(limit, key, 'take', admitted * cost, birth) end
  if admitted < count then reply = reply .. ask(limit, key, 'peek', cost) end
  return reply
end

-- The keys whose values may have changed since they were read.
local changed = {}

local replies = each(function(entry, key)
  local limit, cost, birth, count = unpack('>I1I7I7I4', entries, entry * 19 - 18)
  local known = not changed[key] and values[entry]
  changed[key] = true
  if tokens[limit] and cost > 0 and birth == 0 then
    local value = known or call('GET', key)
    local reply = value and #value == 40 and decide_usual(limit, key, value, cost, count)
    if reply then return reply end
  end
  if count > 1 then return ask_equal(limit, key, cost, birth, count) end
  local reply = ask(limit, key, 'take', cost, birth)
  return (string.byte(reply, 8) == 1 and '\1\0\0\0\1' or '\1\0\0\0\0') .. reply
end, '\0')
replies[1] = pack('>I7', clock) .. replies[1]
return replies
