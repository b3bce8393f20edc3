-- Decides calls in their order, until one is rejected: all limits admit a call and are charged, or none is charged.
-- Consecutive calls with the same costs are a run. Twin of `Local::decide_calls` in
-- ratelimit-runtime/src/local/calls.rs.
--
-- KEYS[i]      the key of limit i; all are different
-- ARGV[1]      op: `take`, `peek` or `mixed`, and a zero byte; the birth of a take that needs receipts, or 0 (7). If
--              there is one limit: the moment that the first call gives up for an earlier one, or zeros: its cost (7,
--              below 0 in two's complement), the birth (7) and the place (7) of its receipt, and the moment (7). Then
--              for each run: its count (4); if there is one limit, the longest wait until a reserved moment (7); each
--              cost (7)
-- ARGV[2]      see `prelude.lua`
-- ARGV[i + 2]  limit i, see `several.lua`
-- Reply        for each limit of calls in flight of a take with receipts the reply to its statement, with a receipt,
--              see `slots.lua`. Then parts: a number of calls (4) and the replies of the limits to the last of them,
--              see `answer.lua`, with receipts if the take needs them. A receipt is zeros if the cost is 0. Equal calls
--              that are admitted now are one part. A part of 0 calls is the reply to the rejected call, or to a `peek`.
--              If the moment cannot be given up, there are no parts; if the key is blocked, the moment is not given up.
--              Or, if the key of a limit has a foreign value, the index of the limit and the error
--
-- The op `mixed` takes calls of different callers, each a run: its limits are those for which its cost is not 0. They
-- are all decided, also after a rejected one. Each has a part, with the replies of its own limits, or 2^32 - 1 if one
-- of them failed.

--@include prelude, several, slots

-- The most calls that this script reserves, as in ratelimit-runtime/src/store/request.rs.
local MAX_RESERVED = 64

local runs, reply, current = ARGV[1], '', 1

local function decide()
  local op, birth, position = unpack('>sI7', runs)
  local is_mixed, is_first, reserved = op == 'mixed', true, 0
  if is_mixed then op = 'take' end
  if #KEYS == 1 then
    local cost, given_up, place, moment = unpack('>i7I7I7I7', runs, position)
    position = position + 28
    -- A blocked key rejects the call, whose moment stays until it is corrected.
    local is_open = given_up > 0 and string.byte(ask(1, KEYS[1], 'peek', 0), 8) < 2
    if is_open and string.byte(ask(1, KEYS[1], 'cancel', cost, given_up, { place, moment }), 8) ~= 1 then return end
  end
  for limit = 1, birth > 0 and #KEYS or 0 do
    if limits[limit][1] == slots then
      current = limit
      reply = reply .. ask(limit, KEYS[limit], 'hold', 0)
    end
  end

  -- Decides `count` equal calls. Returns whether no later call is decided.
  local function decide_run(count, costs, wait)
    local parts, is_full = {}, false
    while count > 0 do
      -- The calls that all limits admit now.
      local now, lacking, lacks = is_full and 0 or count, nil, 0
      for limit = 1, is_full and 0 or #KEYS do
        local cost, peeked = costs[limit], ''
        if cost > 0 or not is_mixed then
          current = limit
          peeked = ask(limit, KEYS[limit], 'peek', cost, 0, op == 'peek' and 0 or 2)
          if string.byte(peeked, 8) ~= 1 then
            now, lacking, lacks = 0, limit, lacks + 1
          elseif now > 1 and cost > 0 then
            now = math.min(now, math.floor(unpack('>I7', peeked, 9) / cost))
          end
        end
        parts[limit] = peeked
      end
      local reserves = now == 0 and wait > 0
      if op == 'peek' then
        now = 0
      elseif now > 0 then
        for limit = 1, #KEYS do
          if costs[limit] > 0 or not is_mixed then
            current = limit
            parts[limit] = ask(limit, KEYS[limit], op, costs[limit] * now, birth)
          end
        end
      elseif reserves then
        local part = ask(1, KEYS[1], 'take', costs[1], birth, wait)
        if string.byte(part, 8) == 1 then
          parts[1], now, reserved = part, 1, reserved + 1
        end
      end
      if lacks == 1 and birth > 0 and is_first and limits[lacking][1] == slots then
        -- The call lacks units in flight only: the process can be next.
        ask(lacking, KEYS[lacking], op, costs[lacking], birth)
      end
      is_first = false
      if now > 0 or not is_full then reply = reply .. pack('>I4', now) .. table.concat(parts) end
      if now == 0 and not is_full or reserved == MAX_RESERVED then return true end
      -- A bucket with reservations is full. Saves a peek at each of them.
      count, is_full = count - now, reserves and now > 0
    end
  end

  while position <= #runs do
    local count, wait, costs = nil, 0, {}
    count, position = unpack('>I4', runs, position)
    if #KEYS == 1 then wait, position = unpack('>I7', runs, position) end
    for limit = 1, #KEYS do costs[limit], position = unpack('>I7', runs, position) end
    if is_mixed then
      -- A key that fails, such as one with a foreign value, fails no call of others.
      if not pcall(decide_run, count, costs, wait) then reply = reply .. '\255\255\255\255' end
    elseif decide_run(count, costs, wait) then
      return
    end
  end
end

-- The error of a key with a foreign value does not name the key. Other errors are those of the script.
local done, failed = pcall(decide)
if done then return reply end
local message = type(failed) == 'table' and failed.err or failed
if string.find(message, 'BADSTATE') or string.find(message, 'WRONGTYPE') then return { current, message } end
error(failed, 0)
