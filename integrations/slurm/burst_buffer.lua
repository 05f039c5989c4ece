-- Slurm's burst_buffer/lua with Zazen's staging. It lies beside slurm.conf, and burst_buffer.conf
-- beside it. Lines of a job script:
--
--   #ZAZEN stage_in source=/lustre/input destination=/job/input
--   #ZAZEN stage_out source=/job/output destination=/lustre/output
--
-- copy trees before the job starts and after it ends, by `zazen stage-in` and `zazen stage-out` on
-- the controller, as the job's user. A job whose stage-in fails does not start; its reason says
-- why. Lines `#ZAZEN dataset=…` are for job_submit.lua.

local zazen = "zazen" -- the program
local socket = nil -- of the daemon, for paths of the namespace; nil: the machine's
local state = "/var/lib/zazen-slurm/staging" -- a folder that only SlurmUser may write to

local function quoted(word)
	return "'" .. word:gsub("'", "'\\''") .. "'"
end

-- Runs a command; true, or false and the last line of what it said.
local function run(command)
	local pipe = io.popen("{ " .. command .. "; } 2>&1 </dev/null; echo; echo status $?")
	if pipe == nil then
		return false, "no process could be started"
	end
	local status, last = nil, "no message"
	for line in pipe:lines() do
		status = line:match("^status (%d+)$") or status
		if line:find("%S") and not line:find("^status %d+$") then
			last = line
		end
	end
	pipe:close()
	return status == "0", last
end

-- The directives of a script: a list of { what, source, destination }; nil and what is wrong.
local function directives(job_script)
	local file = io.open(job_script, "r")
	if file == nil then
		return nil, "zazen: the job script cannot be read"
	end
	local found, wrong = {}, nil
	for line in file:lines() do
		if line:find("%S") and not line:find("^%s*#") then
			break
		end
		local words = line:match("^#ZAZEN%s+(.-)%s*$")
		local what = words and words:match("^(%S+)")
		if what == "stage_in" or what == "stage_out" then
			local one = { what = what }
			for word in words:gmatch("%s(%S+)") do
				local key, value = word:match("^(%a+)=(/%S*)$")
				if key ~= "source" and key ~= "destination" then
					wrong = string.format("zazen: #ZAZEN %s: '%s': give source=/… and destination=/…", what, word)
				else
					one[key] = value
				end
			end
			if one.source == nil or one.destination == nil then
				wrong = wrong or string.format("zazen: #ZAZEN %s: give source=/… and destination=/…", what)
			end
			found[#found + 1] = one
		elseif what and not what:find("^dataset=") then
			wrong = string.format("zazen: #ZAZEN %s: there are dataset=, stage_in and stage_out", what)
		end
	end
	file:close()
	if wrong then
		return nil, wrong
	end
	return found
end

-- How to run a command as the user; nil and the reason if it cannot be done.
local function as_user(uid)
	local pipe = io.popen("id -u")
	local own = tonumber(pipe:read("*l"))
	pipe:close()
	if own == uid then
		return ""
	elseif own == 0 then
		local names = io.popen(string.format("id -g %d", uid))
		local gid = tonumber(names:read("*l") or "")
		names:close()
		if gid == nil then
			return nil, string.format("zazen: the controller knows no user %d", uid)
		end
		return string.format("setpriv --reuid=%d --regid=%d --init-groups -- ", uid, gid)
	end
	return string.format("sudo -n -u '#%d' -- ", uid)
end

-- Later releases of Slurm tell each hook the user; 22.05 tells only the first one.
local function user_of(job_id, uid)
	if type(uid) == "number" then
		return uid
	end
	local file = io.open(string.format("%s/%d", state, job_id), "r")
	if file == nil then
		return nil
	end
	local found = tonumber(file:read("*l") or "")
	file:close()
	return found
end

local function stage(what, job_id, job_script, uid)
	local all, wrong = directives(job_script)
	if all == nil then
		return slurm.ERROR, wrong
	end
	local user = user_of(tonumber(job_id), uid)
	if user == nil then
		return slurm.ERROR, string.format("zazen: %s has no record of the job's user", state)
	end
	local prefix, why = as_user(user)
	if prefix == nil then
		return slurm.ERROR, why
	end
	for _, one in ipairs(all) do
		if one.what == what then
			local command = prefix .. quoted(zazen) .. " " .. what:gsub("_", "-")
			if socket ~= nil then
				command = command .. " --socket " .. quoted(socket)
			end
			command = command .. " -- " .. quoted(one.source) .. " " .. quoted(one.destination)
			local done, said = run(command)
			if not done then
				slurm.log_error("zazen: job %s: %s: %s", tostring(job_id), what, said)
				return slurm.ERROR, said
			end
		end
	end
	return slurm.SUCCESS
end

function slurm_bb_job_process(job_script, ...)
	local all, wrong = directives(job_script)
	if all == nil then
		return slurm.ERROR, wrong
	end
	return slurm.SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, ...)
	local path = string.format("%s/%d", state, job_id)
	local file, why = io.open(path, "w")
	if file == nil then
		return slurm.ERROR, "zazen: " .. tostring(why)
	end
	file:write(string.format("%d\n", uid))
	file:close()
	return slurm.SUCCESS
end

function slurm_bb_data_in(job_id, job_script, uid, ...)
	return stage("stage_in", job_id, job_script, uid)
end

function slurm_bb_data_out(job_id, job_script, uid, ...)
	return stage("stage_out", job_id, job_script, uid)
end

function slurm_bb_job_teardown(job_id, ...)
	os.remove(string.format("%s/%d", state, tonumber(job_id)))
	return slurm.SUCCESS
end

-- Nothing to do, but Slurm wants them.

function slurm_bb_pools()
	return slurm.SUCCESS
end

function slurm_bb_real_size(job_id, ...)
	return slurm.SUCCESS
end

function slurm_bb_paths(job_id, job_script, path_file, ...)
	return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, ...)
	return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, ...)
	return slurm.SUCCESS
end

function slurm_bb_test_data_in(job_id, ...)
	return slurm.SUCCESS
end

function slurm_bb_test_data_out(job_id, ...)
	return slurm.SUCCESS
end

function slurm_bb_get_status(...)
	return slurm.SUCCESS, "zazen stages trees in and out; `squeue` shows the jobs"
end

return slurm.SUCCESS
