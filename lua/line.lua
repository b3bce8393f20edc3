-- Decides the calls of a line in their order, until one is rejected. Consecutive calls with the same costs are a run.
-- Twin of `Embedded::apply_line` in ratelimit-runtime/src/store/embedded/line.rs.
--
-- KEYS[i]      the key of limit i; all are different
-- ARGV[1]      the end (7) and the units (4) of the reservations to cancel, or zeros; the units that the process holds
--              (4) and the most that it reserves (4), or zeros; a birth (7) if the charges can be settled, or
--              zero. Then for each run: its count (4), the longest wait until
--              a reserved moment (7), and the cost for each limit (4)
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  limit i, see `several.lua`
-- Reply        the reply to the cancellation if there is one. Then parts: a number of calls (4) and the replies of the
--              limits to the last of them, see `answer.lua`, with receipts if there is a birth. Equal calls that are
--              admitted now are one part. A part of 0 calls is the reply to the rejected call. If the cancellation is
--              rejected, there are no parts. Or, if a limit failed, its index and its error

--@include prelude, several

-- The most calls that this script reserves, as in ratelimit-runtime/src/store/request.rs.
local MAX_RESERVED = 64

local runs, parts, current = ARGV[1], {}, 1
local stop, cancelled, held, most, birth, position = unpack('>I7I4I4I4I7', runs)
local take = birth > 0 and 'acquire' or 'decide'

-- Applies `op` to `count` calls for all limits. Adds a part of `calls` calls.
local function add(calls, op, costs, count)
  parts[#parts + 1] = pack('>I4', calls)
  for limit = 1, #KEYS do
    current = limit
    parts[#parts + 1] = ask(limit, KEYS[limit], op, costs[limit] * count, birth)
  end
end

-- Returns how many of `count` equal calls all limits admit now.
local function fitting(costs, count)
  for limit = 1, #KEYS do
    current = limit
    local _, allowed, remaining = unpack('>I7I1I4', ask(limit, KEYS[limit], 'peek', 0))
    if costs[limit] > 0 then
      count = math.min(count, math.floor(remaining / costs[limit]))
    elseif allowed ~= 1 then
      return 0
    end
  end
  return count
end

local function decide()
  if stop > 0 then
    parts[1] = ask(1, KEYS[1], 'cancel', cancelled, stop)
    if string.byte(parts[1], 8) ~= 1 then return end
  end
  local reserved = 0
  while position <= #runs do
    local count, wait
    count, wait, position = unpack('>I4I7', runs, position)
    local costs = {}
    for limit = 1, #KEYS do costs[limit], position = unpack('>I4', runs, position) end
    local now = fitting(costs, count)
    if now > 0 then add(now, take, costs, now) end
    for _ = now + 1, count do
      local reply = nil
      if wait > 0 and (held == 0 or held + costs[1] <= most) then
        reply = ask(1, KEYS[1], 'reserve', costs[1], wait)
      end
      if not reply or string.byte(reply, 8) ~= 1 then return add(0, 'peek', costs, 1) end
      if birth > 0 then reply = reply .. string.sub(ask(1, KEYS[1], 'mark', costs[1], birth), 31) end
      parts[#parts + 1] = pack('>I4', 1) .. reply
      held, reserved = held + costs[1], reserved + 1
      if reserved == MAX_RESERVED then return end
    end
  end
end

-- A command that fails raises an error, which does not name the key.
local done, failed = pcall(decide)
if not done then return { current, type(failed) == 'table' and failed.err or failed } end
return table.concat(parts)
