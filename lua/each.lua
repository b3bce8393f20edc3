-- Calls `work` for each key, which returns the reply to its entry. A command that fails raises an error: the reply to
-- its entry is then `failed`, and the script continues with the next entry. Returns a list of strings: the replies one
-- after the other, and the errors of the entries that failed, in their order.

--@include prelude

local function each(work, failed)
  local replies, errors, index = {}, { '' }, 0
  local function rest()
    for entry = index + 1, #KEYS do
      index = entry
      replies[entry] = work(entry, KEYS[entry])
    end
  end
  repeat
    local done, raised = pcall(rest)
    if not done then
      replies[index], errors[#errors + 1] = failed, type(raised) == 'table' and raised.err or raised
    end
  until done
  errors[1] = table.concat(replies)
  return errors
end
