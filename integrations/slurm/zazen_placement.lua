-- Where a job's dataset is warm: for Slurm's job_submit plugin.
--
-- A job names its dataset, by `--comment=zazen:/lustre/sim1` or by a line `#ZAZEN
-- dataset=/lustre/sim1` of its script. If nodes of its partition hold frames of the dataset, the
-- job prefers as many of them as it can use. It never waits for them, and it is never refused
-- because of them.
--
-- The table, which zazen-slurm-features writes, has one line for each node:
--   name <tab> partitions <tab> CPUs <tab> MiB <tab> MiB of TmpDisk <tab> gres <tab> features
-- Lists are joined by commas; gres are name=count. The first line has a version and the time.
--
-- Any Lua from 5.1 on. Numbers stay below 2^53, because Lua 5.1 has no others.

local M = {}

-- A table that is older than this many seconds is not believed.
M.seconds_max = 600

-- The path as the daemon writes it: without `//`, `.`, `..` and a last slash; nil if it is not
-- absolute, or has control characters.
function M.normal(path)
	if path:sub(1, 1) ~= "/" or path:find("%c") then
		return nil
	end
	local parts = {}
	for part in path:gmatch("[^/]+") do
		if part == ".." then
			table.remove(parts)
		elseif part ~= "." then
			parts[#parts + 1] = part
		end
	end
	return "/" .. table.concat(parts, "/")
end

-- The node feature of a dataset. `feature_of` of zazen-slurm-features computes the same.
function M.feature(path)
	local one, two = 1, 1
	for at = 1, #path do
		local byte = path:byte(at) + 1
		one = (one * 1000003 + byte) % 4294967291
		two = (two * 1000033 + byte) % 4294967279
	end
	return string.format("zz_%08x%08x", one, two)
end

-- The dataset that a job names: its path, or nil and what is wrong with what it wrote, or nil.
function M.dataset(comment, script)
	local named
	local padded = " " .. (comment or "")
	named = padded:match("%szazen:(%S*)")
	if named == nil then
		for line in (script or ""):gmatch("[^\n]+") do
			-- As for #SBATCH: directives are above the first command.
			if line:find("%S") and not line:find("^%s*#") then
				break
			end
			local words = line:match("^#ZAZEN%s+(.*)")
			if words then
				named = named or (" " .. words):match("%sdataset=(%S*)")
			end
		end
	end
	if named == nil then
		return nil
	end
	local path = M.normal(named)
	if path == nil then
		return nil, string.format("zazen: dataset '%s': give its absolute path, without spaces", named)
	end
	return path
end

local function numbers(list)
	local found = {}
	for name, count in (list or ""):gmatch("([^=,]+)=(%d+)") do
		found[name] = tonumber(count)
	end
	return found
end

local function set(list)
	local found = {}
	for name in (list or ""):gmatch("[^,]+") do
		found[name] = true
	end
	return found
end

-- The nodes of the table; nil and the reason if there is none that can be believed.
function M.read(path, now)
	local file, why = io.open(path, "r")
	if file == nil then
		return nil, why
	end
	local version, time = (file:read("*l") or ""):match("^zazen%-slurm (%d+) (%d+)$")
	if version ~= "1" then
		file:close()
		return nil, path .. ": no table of this version"
	end
	if now - tonumber(time) > M.seconds_max then
		file:close()
		return nil, path .. ": old; does zazen-slurm-features run?"
	end
	local nodes = {}
	for line in file:lines() do
		local name, parts, cpus, memory, disk, gres, features =
			line:match("^(%S+)\t([^\t]*)\t(%d+)\t(%d+)\t(%d+)\t([^\t]*)\t([^\t]*)$")
		if name then
			nodes[#nodes + 1] = {
				partitions = set(parts),
				cpus = tonumber(cpus),
				memory = tonumber(memory),
				disk = tonumber(disk),
				gres = numbers(gres),
				features = set(features),
			}
		end
	end
	file:close()
	return nodes
end

-- A number of a job description, or nil where Slurm has its mark for "not given": the largest
-- numbers of 16, 32 and 64 bits.
local function given(value)
	if type(value) ~= "number" or value >= 4294967290 or (value >= 65533 and value <= 65535) then
		return nil
	end
	return value
end

-- What each node must have, and how many nodes the job has at least.
local function needs(job)
	local tasks, each = given(job.num_tasks) or 1, given(job.cpus_per_task) or 1
	local beside, nodes = given(job.ntasks_per_node), given(job.min_nodes)
	if beside == 0 then
		beside = nil
	end
	-- Below 1 is "not given" here.
	tasks, each = math.max(1, tasks), math.max(1, each)
	if nodes ~= nil and nodes < 1 then
		nodes = nil
	end
	if nodes == nil and beside ~= nil then
		nodes = math.ceil(tasks / beside)
	elseif nodes == nil and tasks == 1 then
		nodes = 1
	end
	local need = { nodes = nodes, tasks = tasks, each = each, gres = {} }
	need.cpus = math.max(given(job.pn_min_cpus) or 0, (beside or 1) * each)
	if nodes ~= nil then
		need.cpus = math.max(need.cpus, math.ceil(tasks / nodes) * each)
	end
	need.memory = given(job.min_mem_per_node) or (given(job.min_mem_per_cpu) or 0) * need.cpus
	need.disk = given(job.pn_min_tmp_disk) or 0
	for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "gres" }) do
		for one in tostring(job[field] or ""):gmatch("[^,]+") do
			local name, rest = one:gsub("^gres[:/]", ""):match("^([^:=]+)(.*)$")
			if name then
				-- Without -N the nodes' shares of a job's gres are not known; one is the least.
				local count = field == "tres_per_node" and tonumber(rest:match("(%d+)$")) or 1
				need.gres[name] = math.max(need.gres[name] or 0, count)
			end
		end
	end
	return need
end

-- The names of a constraint that joins names by `&`; nil for any other constraint.
local function names_of(constraint)
	if constraint == nil or constraint == "" then
		return {}
	end
	if constraint:find("[^%w_%.%-&]") then
		return nil
	end
	local names = {}
	for name in constraint:gmatch("[^&]+") do
		names[#names + 1] = name
	end
	return names
end

local function fits(node, need, names, feature)
	if not node.features[feature] or node.cpus < need.cpus then
		return false
	end
	if node.memory < need.memory or node.disk < need.disk then
		return false
	end
	for name, count in pairs(need.gres) do
		if (node.gres[name] or 0) < count then
			return false
		end
	end
	for _, name in ipairs(names) do
		if not node.features[name] then
			return false
		end
	end
	return true
end

-- How many warm nodes of a partition the job can have.
local function warm_nodes(need, names, feature, nodes, partition)
	local cpus = 1
	for _, node in ipairs(nodes) do
		if node.partitions[partition] then
			cpus = math.max(cpus, node.cpus)
		end
	end
	local warm = 0
	for _, node in ipairs(nodes) do
		if node.partitions[partition] and fits(node, need, names, feature) then
			warm = warm + 1
		end
	end
	-- Without -N: as many as the tasks need at least.
	return math.min(warm, need.nodes or math.ceil(need.tasks * need.each / cpus))
end

-- What the job shall prefer, from the nodes of the table; nil if nothing, and then perhaps a
-- message to the user. `partitions` are those that the job may run in.
function M.preference(job, path, nodes, partitions)
	-- Who says which nodes, knows best. With these, Slurm would refuse a job whose warm nodes they
	-- rule out.
	for _, field in ipairs({ "req_nodes", "exc_nodes", "reservation", "prefer" }) do
		if job[field] ~= nil and job[field] ~= "" then
			return nil
		end
	end
	local names = names_of(job.features)
	if names == nil then
		return nil, string.format(
			"zazen: the job is not placed near %s: --constraint=%s is more than names joined by &",
			path,
			job.features
		)
	end
	local feature, need, least = M.feature(path), needs(job), nil
	for _, partition in ipairs(partitions) do
		local count = warm_nodes(need, names, feature, nodes, partition)
		least = math.min(least or count, count)
	end
	if least == nil or least == 0 then
		-- A misspelt path looks like a dataset that nobody has read yet.
		local where = #partitions > 1 and " in each of its partitions" or ""
		return nil, string.format("zazen: no node that the job can use holds %s now%s", path, where)
	end
	-- What `name` alone says holds for each node of the job, and what `name*count` says for so many.
	-- Slurm takes no count above the job's nodes or above those that there are.
	if least == need.nodes then
		-- A preference takes the place of the constraint while Slurm tries it, so it holds it, too.
		names[#names + 1] = feature
		return table.concat(names, "&")
	elseif #names == 0 then
		return string.format("%s*%d", feature, least)
	end
	-- With a count, Slurm would take nodes that the constraint forbids.
	return nil
end

-- For slurm_job_submit: sets `job_desc.prefer`. Returns a message if the job must be refused.
function M.place(slurm, job_desc, part_list, table_path)
	local path, wrong = M.dataset(job_desc.comment, job_desc.script)
	if path == nil then
		return wrong
	end
	local nodes, why = M.read(table_path, os.time())
	if nodes == nil then
		slurm.log_error("zazen: jobs are not placed near their datasets: %s", tostring(why))
		slurm.log_user("zazen: the job is not placed near %s: the controller has no fresh table", path)
		return nil
	end
	local partitions = {}
	if job_desc.partition ~= nil and job_desc.partition ~= "" then
		for name in job_desc.partition:gmatch("[^,]+") do
			partitions[#partitions + 1] = name
		end
	else
		for name, partition in pairs(part_list) do
			if partition.flag_default == 1 then
				partitions[1] = name
			end
		end
	end
	local prefer, message = M.preference(job_desc, path, nodes, partitions)
	if message ~= nil then
		slurm.log_user("%s", message)
	end
	if prefer ~= nil then
		job_desc.prefer = prefer
	end
	return nil
end

return M
