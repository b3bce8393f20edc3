-- Calls in flight: the units that the calls of all processes hold.
-- Twin of ratelimit-runtime/src/algorithm/slots.rs, which knows one process only.
--
-- Each process has a record of the units that it holds, until nothing was heard of it for the hold. A process states
-- all of them with each request, under a number that only grows: the record becomes what is stated, also above the
-- limit, so a store that has lost its memory learns it again. A statement that comes late has a smaller number than the
-- record, and changes nothing.
--
-- State    string: its beginning (12), see `write_state.lua`; the latest time of a statement (7); the epoch, which is
--          the time of the last reset, or 0 (7); a time before which no record expires (7); the time at which the last
--          one expires (7); the units that are held (7); the number of records (4); the process that is next (7), since
--          when it waits (7), the units that it waits for (7), the time until which it is next (7), or zeros. Then the
--          records: process (7), number of its last statement (7), units (7), the time at which it expires (7). Bytes
--          after the last record mean nothing
--
-- A process whose calls have waited for a second states how long they have waited. If it is rejected, it is next: units
-- that are released are kept for it, and others take only what it leaves, unless they wait for longer. It looks again
-- within a second.
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            see `prelude.lua`. A `peek` with the operand 2 leaves units to the process that is next, as a take does. A
--            `take` and `hold` state what the process holds; once in a script for each key. `hold` does nothing else. A
--            late statement is rejected. With the operand 1, `hold` frees the units of all processes, keeps the numbers
--            of their statements and unblocks the key: it is admitted if there were any units or the key was blocked,
--            and has the new epoch in its receipt. `correct` changes nothing
-- threshold  units that may be held
-- hold       microseconds for which a process holds its units after each statement
-- process    the process that states the other numbers, or 0: then nothing is stated
-- seq        the number of the statement
-- units      the units that it holds
-- epoch      the epoch that it knows: if there was a later reset, its units are lost
-- waited     microseconds for which its calls have waited without a unit, or 0
--
-- Returns the arguments of `answer.lua`. The receipt is the epoch (7), and 1 if the units are lost, otherwise 0 (7).
local stated = {}
local function slots(
  call, pack, unpack, key, clock, given, op, cost, birth, operand,
  threshold, hold, process, seq, units, epoch, waited
)
  local VERSION, HEADER, RECORD, FORMAT, NEXT, EMPTY = 10, 79, 28, '>I7I7I7I7', 1500000, 60000000
  local version, lives, blocked, now, since, first, last, held, count = VERSION, 0, 0, 0, 0, 0, 0, 0, 0
  local following, follows_since, follows_cost, follows_until = 0, 0, 0, 0
  local state = call('GET', key)
  if state and #state == 12 then
    version, lives, blocked = unpack('>I1I4I7', state)
  elseif state then
    if #state < HEADER then return end
    version, lives, blocked, now, since, first, last, held, count,
      following, follows_since, follows_cost, follows_until = unpack('>I1I4I7I7I7I7I7I7I4I7I7I7I7', state)
    if #state < HEADER + count * RECORD then return end
  end
  if version ~= VERSION then return end
  if now < clock then now = clock end
  -- Units of before the last reset are lost by now.
  if since > 0 and hold > 0 and since + hold <= now then since = 0 end
  -- Where the records are.
  local records, from, to = state or '', HEADER + 1, HEADER + count * RECORD
  if count > 0 and first <= now then
    -- Removes the records of processes that have stated nothing for their hold.
    local alive = {}
    held, first = 0, last
    for at = from, to, RECORD do
      local _, _, has, expires = unpack(FORMAT, records, at)
      if expires > now then
        alive[#alive + 1], held = string.sub(records, at, at + RECORD - 1), held + has
        if expires < first then first = expires end
      end
    end
    records, count = table.concat(alive), #alive
    from, to = 1, #records
  end

  -- The record of the process.
  local name, at, own_seq, own_units, expires, _ = pack('>I7', process), from, 0, 0, 0, nil
  repeat
    at = string.find(records, name, at, true)
    if at and (at - from) % RECORD ~= 0 then at = at + 1 else break end
  until false
  if at and at > to then at = nil end
  if at then _, own_seq, own_units, expires = unpack(FORMAT, records, at) end
  local resets, is_late, is_lost = op == 'hold' and operand == 1, false, false
  if process > 0 and not resets and op ~= 'correct' and stated[key] ~= seq then
    is_late = seq <= own_seq and op ~= 'peek'
    if seq > own_seq then
      is_lost = since > epoch and units > 0
      held = held - own_units
      own_seq, own_units = seq, is_lost and 0 or units
      held = held + own_units
      if op ~= 'peek' then stated[key] = seq end
    end
  end

  local allowed, remaining, retry, reset, slack, changed, receipt = not is_late, 0, 0, 0, 0, nil, nil
  local measures, kept = op == 'peek' and operand == 1, 0
  local is_changed = op == 'take' or op == 'hold' and not is_late
  if op == 'take' or op == 'peek' and not measures then
    if following ~= process and follows_until > now and follows_since <= now - waited
      and (op == 'take' or operand == 2) then
      kept = follows_cost
    end
    allowed = held + cost + (cost > 0 and kept or 0) <= threshold
    if is_late then
      allowed, is_changed = false, false
    elseif blocked > clock then
      allowed = false
    elseif op == 'take' and not allowed then
      -- The process that has waited for longest is next.
      if birth > 0 and waited > 0 and kept == 0 then
        following, follows_since, follows_cost, follows_until = process, now - waited, cost, now + NEXT
      end
    elseif op == 'take' then
      if following == process then follows_until = 0 end
      own_units, held = own_units + cost, held + cost
    end
    if op == 'take' and birth > 0 then receipt = pack('>I7I7', since, is_lost and 1 or 0) end
  elseif resets then
    allowed, since = held > 0 or blocked > clock, now > since and now or since + 1
    -- Without an end of the TTL, the beginning is written as well.
    blocked, lives = 0, 0
    -- The records keep the numbers of their statements: one that was sent before the reset states nothing after it.
    local freed = {}
    for record = from, to, RECORD do
      local owner, last_seq, _, ends = unpack(FORMAT, records, record)
      freed[#freed + 1] = pack(FORMAT, owner, last_seq, 0, ends)
    end
    records = table.concat(freed)
    from, to, held, follows_until = 1, #records, 0, 0
    -- The epoch is kept for as long as a process may hold units that it has taken before.
    if now + hold > last then last = now + hold end
    receipt = pack('>I7I7', since, 0)
  elseif op == 'hold' then
    receipt = pack('>I7I7', since, is_lost and 1 or 0)
  end
  if measures then
    allowed, remaining = blocked <= clock, held
  elseif held < threshold and blocked <= clock then
    remaining = threshold - held
    -- So many calls are admitted.
    if op == 'peek' and allowed and kept > 0 then remaining = math.max(cost, remaining - kept) end
  end

  if is_changed then
    local record = ''
    if not resets then
      -- A record without units outlives the statements that are still on their way.
      expires = now + (own_units == 0 and hold > EMPTY and EMPTY or hold)
      if count == 0 or expires < first then first = expires end
      if expires > last then last = expires end
      record = pack(FORMAT, process, own_seq, own_units, expires)
      count, at = count + (at and 0 or 1), at or to + 1
    else
      at = to + 1
    end
    if follows_until == 0 then following, follows_since, follows_cost = 0, 0, 0 end
    changed = pack('>I7I7I7I7I7I4I7I7I7I7', now, since, first, last, held, count,
      following, follows_since, follows_cost, follows_until)
      .. string.sub(records, from, at - 1) .. record .. string.sub(records, at + RECORD, to)
  end
  if (count > 0 or since > 0) and last > clock then reset = last - clock end
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
