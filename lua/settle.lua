
-- Corrects charges that are independent of each other, once their calls have ended.
-- Twin of `Embedded::settle` in ratelimit-runtime/src/store/embedded/mod.rs.
--
-- KEYS[i]          the key of charge i
-- ARGV[1]          for each charge its limit (1), its receipt, which is a birth (7) and a place (7), the units that were
--                  charged and not used (4), and those that were used and not charged (4)
-- ARGV[2]          see `prelude.lua`
-- ARGV[limit + 2]  a limit, see `several.lua`
-- Reply            list of strings. The first string contains for each charge the reply to its correction, see
--                  `answer.lua`; if it failed, 30 zero bytes. The other strings are the errors of these charges, in their
--                  order

local BORN, FAILED = 64, string.rep('\0', 30)
local charges, replies, errors, index = ARGV[1], {}, { '' }, 0

-- Returns whether a state has this birth.
local function has_birth(key, birth)
  local beginning = call('GETRANGE', key, 0, 13)
  if #beginning < 14 then return false end
  local version, _, own = unpack('>I1I6I7', beginning)
  return version % (2 * BORN) >= BORN and own == birth
end

-- Corrects the charges after `index`.
local function settle_rest()
  for charge = index + 1, #KEYS do
    index = charge
    local key, reply = KEYS[charge], nil
    local limit, birth, place, less, more = unpack('>I1I7I7I4I4', charges, charge * 23 - 22)
    if less > 0 and has_birth(key, birth) then
      -- A bucket finds a charge by its number, a window by its time.
      reply = ask(limit, key, limits[limit][1] == bucket and 'settle' or 'return', less, place)
    elseif more > 0 then
      reply = ask(limit, key, 'charge', more)
    end
    replies[charge] = reply or ask(limit, key, 'peek', 0)
  end
end

-- A command that fails raises an error. The script then continues with the next charge.
repeat
  local done, failed = pcall(settle_rest)
  if not done then
    replies[index], errors[#errors + 1] = FAILED, type(failed) == 'table' and failed.err or failed
  end
until done

errors[1] = table.concat(replies)
return errors
