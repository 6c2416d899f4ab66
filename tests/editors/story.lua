-- Drives Neovim through the whole story and writes what it saw as JSON. Run: nvim -u NONE -n -i NONE --headless -S story.lua
local seen = { progress = {}, messages = {}, steps = {} }
local function write()
  local file = assert(io.open(vim.env.HIERA_SEEN, "w"))
  file:write(vim.json.encode(seen))
  file:close()
end
local function step(name, value)
  seen.steps[#seen.steps + 1] = name
  seen[name] = value == nil and vim.NIL or value
end
local function main()
  local python, file, root = vim.env.HIERA_PYTHON, vim.env.HIERA_FILE, vim.env.HIERA_ROOT
  vim.cmd("filetype on")
  vim.o.hidden = true
  vim.api.nvim_create_autocmd("LspProgress", { callback = function(event)
    local value = event.data.params.value
    seen.progress[#seen.progress + 1] = { kind = value.kind, message = value.message or "", title = value.title or "" }
  end })
  vim.cmd("edit " .. vim.fn.fnameescape(file))
  local buffer = vim.api.nvim_get_current_buf()
  local id = assert(vim.lsp.start({
    name = "hiera", cmd = { python, "-m", "hiera_lsp" }, cmd_cwd = vim.env.HIERA_SOURCE, root_dir = root,
    init_options = { settings = { preset = "quick", device = "none", budget = { candidates = 1 } } },
    settings = { hiera = { preset = "quick", device = "none", budget = { candidates = 1 } } },
    handlers = {
      ["window/showMessage"] = function(_, result) seen.messages[#seen.messages + 1] = result.message end,
      ["window/logMessage"] = function(_, result) seen.messages[#seen.messages + 1] = result.message end,
    },
  }))
  local client = assert(vim.lsp.get_client_by_id(id))
  assert(vim.wait(30000, function() return client.initialized end, 20), "the server did not start")
  step("encoding", client.offset_encoding)
  local line = 0
  for number, text in ipairs(vim.api.nvim_buf_get_lines(buffer, 0, -1, false)) do
    if text:match("^class ") then line = number end
  end
  vim.api.nvim_win_set_cursor(0, { line, 6 })
  local function request(method, params)
    local answer, problem = client:request_sync(method, params, 60000, buffer)
    assert(answer, method .. ": " .. tostring(problem))
    assert(not answer.err, method .. ": " .. vim.inspect(answer.err))
    return answer.result
  end
  local function titles()
    local place = { line = line - 1, character = 6 }
    local found = {}
    for _, action in ipairs(request("textDocument/codeAction", { textDocument = { uri = vim.uri_from_bufnr(buffer) },
      range = { start = place, ["end"] = place }, context = { diagnostics = {}, triggerKind = 1 } })) do
      found[#found + 1] = action.title
    end
    return found
  end
  step("titles", titles())
  -- What a user does: the menu, with the only entry that fits taken.
  vim.lsp.buf.code_action({ apply = true, filter = function(action)
    return vim.startswith(action.title, "Optimize kernel: ") end })
  local last = function() return seen.progress[#seen.progress] or {} end
  assert(vim.wait(240000, function() return last().kind == "end" end, 50), "the job did not end")
  assert(vim.wait(10000, function() return #vim.diagnostic.get(buffer) > 0 end, 20), "no diagnostic came")
  local diagnostic = vim.diagnostic.get(buffer)[1]
  step("diagnostic", { message = diagnostic.message, code = diagnostic.code, line = diagnostic.lnum + 1, column = diagnostic.col })
  local hover = request("textDocument/hover", { textDocument = { uri = vim.uri_from_bufnr(buffer) },
    position = { line = line - 1, character = 6 } })
  step("hover", hover.contents.value)
  step("after", titles())
  local before = vim.api.nvim_buf_get_lines(buffer, 0, -1, false)
  step("before", before)
  vim.lsp.buf.code_action({ apply = true, filter = function(action)
    return vim.startswith(action.title, "Use the kernel in this") end })
  assert(vim.wait(20000, function() return #vim.api.nvim_buf_get_lines(buffer, 0, -1, false) > #before end, 20), "nothing was edited")
  step("used", vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
  vim.wait(1000, function() return false end, 50)
  step("standing", request("workspace/executeCommand", { command = "hiera.result",
    arguments = { { uri = vim.uri_from_bufnr(buffer), symbol = vim.env.HIERA_SYMBOL } } }).standing)
  local kernels = {}
  for _, other in ipairs(vim.api.nvim_list_bufs()) do
    local name = vim.api.nvim_buf_get_name(other)
    if name:match("/hiera_kernels/") then
      kernels[#kernels + 1] = vim.fn.fnamemodify(name, ":t")
      if name:match("cuda_source.cu$") then step("source", table.concat(vim.api.nvim_buf_get_lines(other, 0, -1, false), "\n")) end
    end
  end
  table.sort(kernels)
  step("kernels", kernels)
  vim.api.nvim_set_current_buf(buffer)
  vim.cmd("undo")
  step("undone", vim.api.nvim_buf_get_lines(buffer, 0, -1, false))
  vim.wait(500, function() return false end, 50)
  step("standing_after_undo", request("workspace/executeCommand", { command = "hiera.result",
    arguments = { { uri = vim.uri_from_bufnr(buffer), symbol = vim.env.HIERA_SYMBOL } } }).standing)
  local started = vim.uv.now()
  client:stop()
  step("stopped", vim.wait(5000, function() return client:is_stopped() end, 20))
  step("stopped_ms", vim.uv.now() - started)
end
local fine, problem = pcall(main)
if not fine then seen.problem = tostring(problem) end
write()
vim.cmd("qa!")
