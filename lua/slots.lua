-- Calls in flight: the units that the calls of all processes hold.
-- Twin of ratelimit-runtime/src/algorithm/slots.rs, which knows one process only.
--
-- Each process has a record of the units that its calls have taken and released, since the process has the count, until
-- nothing was heard of it for the hold. Both numbers only grow, and a process states them with each call, so a
-- statement that comes late or twice changes nothing: the larger number holds. When a process
-- gives up requests that have no reply, it states a greater fence: the units that these requests have taken are free
-- again, and a request of a smaller fence takes none (ratelimit-runtime/src/store/holder/mod.rs).
--
-- State    string: its beginning (12), see `write_state.lua`; the epoch, which is the time of the last reset, or 0 (7);
--          a time before which no record expires (7); the time at which the last one expires (7); the units that are
--          held (7); the number of records (2); the process that is next (7), since when it waits (7), the units that
--          it waits for (7), the time until which it is next (7), or zeros. Then the records: process (7), fence (7),
--          taken (7), released (7), the time at which it expires (7). Bytes after the last record mean nothing
--
-- A process whose calls have waited for a second states how long they have waited. If it is rejected, it is next: units
-- that are released are kept for it, and others take only what it leaves. It looks again within a second.
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            see `prelude.lua`. A `peek` with the operand 2 leaves units to the process that is next, as a take does.
--            The op `hold` only states what the process holds; it is rejected if its units were given to others
--            meanwhile. With the operand 1, it frees the units of all processes, keeps their fences and opens the key:
--            it is admitted if there were any units or the key was closed, and has the new epoch in its receipt
-- threshold  units that may be held
-- hold       microseconds for which a process holds its units after each call and each statement
-- process    the process that states the other numbers, or 0: then nothing is stated
-- fence      its fence; a smaller one than that of its record states nothing and takes nothing
-- epoch      the epoch that it knows
-- taken, released
--            its numbers
-- promised   the time until which this count has promised to keep its units
-- waited     microseconds for which its calls have waited without a unit, or 0
--
-- Returns the arguments of `answer.lua`. The receipt is the epoch (7) and the taken units of the process (7).
local function slots(
  call, pack, unpack, key, clock, given, op, cost, birth, operand,
  threshold, hold, process, fence, epoch, taken, released, promised, waited
)
  local VERSION, HEADER, RECORD, FORMAT, NEXT = 9, 70, 35, '>I7I7I7I7I7', 1500000
  local version, lives, closed, since, first, last, held, count = VERSION, 0, 0, 0, 0, 0, 0, 0
  local following, follows_since, follows_cost, follows_until = 0, 0, 0, 0
  local state = call('GET', key)
  if state and #state == 12 then
    version, lives, closed = unpack('>I1I4I7', state)
  elseif state then
    if #state < HEADER then return end
    version, lives, closed, since, first, last, held, count, following, follows_since, follows_cost, follows_until =
      unpack('>I1I4I7I7I7I7I7I2I7I7I7I7', state)
    if #state < HEADER + count * RECORD then return end
  end
  if version ~= VERSION then return end
  -- Where the records are.
  local records, from, to = state or '', HEADER + 1, HEADER + count * RECORD
  if count > 0 and first <= clock then
    -- Removes the records of processes that have stated nothing for their hold.
    local alive = {}
    held, first = 0, last
    for at = from, to, RECORD do
      local _, _, has_taken, has_released, expires = unpack(FORMAT, records, at)
      if expires > clock then
        alive[#alive + 1], held = string.sub(records, at, at + RECORD - 1), held + has_taken - has_released
        if expires < first then first = expires end
      end
    end
    records, count = table.concat(alive), #alive
    from, to = 1, #records
  end

  -- The record of the process.
  local name, at, own_fence, own_taken, own_released, expires, _ = pack('>I7', process), from, 0, 0, 0, 0, nil
  repeat
    at = string.find(records, name, at, true)
    if at and (at - from) % RECORD ~= 0 then at = at + 1 else break end
  until false
  if at and at > to then at = nil end
  if at then
    _, own_fence, own_taken, own_released, expires = unpack(FORMAT, records, at)
  end
  local before, is_void = own_taken - own_released, false
  local is_given_up = process > 0 and fence < own_fence
  if epoch > since then since = epoch end
  if process > 0 and not is_given_up then
    if fence > own_fence then own_fence, own_taken, own_released = fence, 0, 0 end
    if epoch == since then
      -- Units that others may have now are not held again.
      is_void = not at and promised <= clock and taken > released
      if taken > own_taken then own_taken = taken end
      if released > own_released then own_released = released end
      if is_void then own_released = own_taken end
    else
      is_void = taken > released
    end
  end
  if own_released > own_taken then own_released = own_taken end
  held = held - before + own_taken - own_released

  local allowed, remaining, retry, reset, slack, changed, receipt = true, 0, 0, 0, 0, nil, nil
  local measures, resets = op == 'peek' and operand == 1, op == 'hold' and operand == 1
  local is_changed, kept = op ~= 'peek', 0
  if op == 'take' or op == 'peek' and not measures then
    if following ~= process and follows_until > clock and follows_since < clock - waited
      and (is_changed or operand == 2) then
      kept = follows_cost
    end
    allowed = held + cost + (cost > 0 and kept or 0) <= threshold
    if closed > clock or is_given_up and (is_changed or operand == 2) then
      allowed, is_changed = false, false
    elseif not allowed then
      -- The process that has waited for longest is next.
      is_changed = op == 'take' and birth > 0 and waited > 0 and kept == 0
      if is_changed then
        following, follows_since, follows_cost, follows_until = process, clock - waited, cost, clock + NEXT
      end
    elseif is_changed then
      if following == process then follows_until = 0 end
      own_taken, held = own_taken + cost, held + cost
      if birth > 0 and cost > 0 then receipt = pack('>I7I7', since, own_taken) end
    end
  elseif op == 'correct' and operand > 0 then
    local back = math.min(-cost, own_taken - own_released)
    own_released, held = own_released + back, held - back
  elseif resets then
    allowed, since = held > 0 or closed > clock, clock > since and clock or since + 1
    -- Without an end of the TTL, the beginning is written as well.
    closed, lives = 0, 0
    -- The records keep their fences: a request that was given up before the reset takes nothing after it.
    local freed = {}
    for record = from, to, RECORD do
      local owner, given_up, _, _, ends = unpack(FORMAT, records, record)
      if record == at then given_up = own_fence end
      freed[#freed + 1] = pack(FORMAT, owner, given_up, 0, 0, ends)
    end
    records = table.concat(freed)
    from, to, held, at, own_released, follows_until = 1, #records, 0, nil, own_taken, 0
    -- The process that resets remembers the epoch as long.
    if clock + hold > last then last = clock + hold end
    receipt = pack('>I7I7', since, 0)
  elseif op == 'hold' then
    allowed, receipt = not is_void, pack('>I7I7', since, own_taken)
  end
  if measures then
    allowed, remaining = closed <= clock, held
  elseif held < threshold and closed <= clock then
    remaining = threshold - held
    -- So many calls are admitted.
    if op == 'peek' and allowed and kept > 0 then remaining = math.max(cost, remaining - kept) end
  end

  if is_changed then
    local record = ''
    -- A record without units stays for the hold: a call that is still on its way has stated less than it has.
    if (own_taken > 0 or op == 'hold') and not resets then
      if clock + hold > expires then expires = clock + hold end
      if count == 0 or expires < first then first = expires end
      if expires > last then last = expires end
      record = pack(FORMAT, process, own_fence, own_taken, own_released, expires)
    end
    count = count - (at and 1 or 0) + (record ~= '' and 1 or 0)
    at = at or to + 1
    if follows_until == 0 then following, follows_since, follows_cost = 0, 0, 0 end
    changed = pack('>I7I7I7I7I2I7I7I7I7', since, first, last, held, count,
      following, follows_since, follows_cost, follows_until)
      .. string.sub(records, from, at - 1) .. record .. string.sub(records, at + RECORD, to)
  end
  -- The epoch is kept while a process may hold units that it has taken before.
  if (count > 0 or since > 0) and last > clock then reset = last - clock end
  return allowed, remaining, retry, reset, slack, version, lives, closed, changed, receipt
end
