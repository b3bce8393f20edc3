-- Corrects charges that are independent of each other, once their calls have ended, and closes and opens keys.
-- Twin of `Embedded::settle` in ratelimit-runtime/src/store/embedded/mod.rs.
--
-- KEYS[i]          the key of entry i
-- ARGV[1]          for each entry: the limit (1); the receipt of the charge, which is a birth (7) and a place (7); the
--                  units to give back (4); the units to charge (4); and a time (7). A time of 0 changes nothing, and
--                  2^53 - 1 opens the key. Any other time closes the key for as many microseconds
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings, see `each.lua`. The reply to an entry is the reply to its correction, see
--                  `answer.lua`; if it failed, 30 zero bytes

--@include prelude, answer, closing, close, each, several

local entries, BORN, OPEN = ARGV[1], 64, 9007199254740991

-- Returns whether a state has this birth.
local function has_birth(state, birth)
  if #state < 12 then return false end
  local version, _, own = unpack('>I1I4I7', state)
  return version % (2 * BORN) >= BORN and own == birth
end

-- Returns the first bytes of the state of a key.
local function beginning_of(key)
  local beginning = call('GETRANGE', key, 0, CLOSED_HEADER + 11)
  local _, _, state = unwrap(beginning)
  return state or beginning
end

return each(function(entry, key)
  local limit, birth, place, less, more, time = unpack('>I1I7I7I4I4I7', entries, entry * 30 - 29)
  local decide_and_terms = limits[limit]
  local decide = decide_and_terms[1]
  local stands_still = RUNTIME.stands_still
  -- A correction and a closing are written together.
  local count = time > 0 and read_count(key)
  local op, cost, operand = 'peek', 0, 0
  if less > 0 and has_birth(count and count.state or beginning_of(key), birth) then
    -- A bucket finds a charge by its number, a window by its time.
    op, cost, operand = stands_still and 'settle' or 'return', less, place
  elseif more > 0 then
    op, cost = 'charge', more
  end
  if not count then return ask(limit, key, op, cost, operand) end
  local function apply(call, clock, op, cost, operand)
    return answer(call, pack, key, clock, given,
      decide(call, pack, unpack, key, clock, given, op, cost, operand, unpack_list(decide_and_terms, 2)))
  end
  local reply = ask_count(count, apply, stands_still, op, cost, operand)
  if type(reply) == 'table' then error(reply) end
  if time == OPEN then
    open(count, apply, stands_still)
  else
    close(count, stands_still, time)
  end
  write_count(count)
  return reply
end, string.rep('\0', 30))
