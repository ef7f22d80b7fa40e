--- Lines of a generated program without its step, which has the same few whatever the model.
---@param text string of the file
---@return integer
return function(text)
  local body = text:match '^(.-\n)%-%- The step of an optimizer' or text
  return (select(2, body:gsub('\n', '')))
end
