-- Calls `work` for each key, which returns the reply to its entry. A command that fails raises an error: the reply to
-- its entry is then `failed`, and so are those to later entries of its key, in whose place nothing is done. The script
-- continues with the next entry of another key. Returns a list of strings: the replies one after the other, and the
-- errors of the entries that failed, in their order. On a replica, where no command can write, the script fails.

--@include prelude

local function each(work, failed)
  local replies, errors, index, broken = {}, { '' }, 0, {}
  local function rest()
    for entry = index + 1, #KEYS do
      index = entry
      if broken[KEYS[entry]] then error(broken[KEYS[entry]], 0) end
      replies[entry] = work(entry, KEYS[entry])
    end
  end
  repeat
    local done, raised = pcall(rest)
    if not done then
      local message = type(raised) == 'table' and raised.err or raised
      if string.find(message, 'READONLY') then error(raised, 0) end
      broken[KEYS[index]] = raised
      replies[index], errors[#errors + 1] = failed, message
    end
  until done
  errors[1] = table.concat(replies)
  return errors
end
