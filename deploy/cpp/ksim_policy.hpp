// Runs a policy exported by ksim with ONNX Runtime: readings of a robot in, targets of its motors out.
//
//   ksim::Policy policy("export/policy.onnx");
//   policy.command("velocity", {0.5, 0, 0});
//   every policy.control_dt_s() seconds:
//     ksim::Readings readings = ...;
//     send(policy.step(readings));
//
// The metadata in the file say how observations are made and how actions become targets; docs/deploying.md describes
// them. Needs C++17, ONNX Runtime 1.16 or newer, and nlohmann-json 3.9 or newer.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ksim {

using Json = nlohmann::ordered_json;  // filters and ranges of commands are in order
using Vector = std::vector<double>;
using Vector3 = std::array<double, 3>;

// Readings of a robot at one control step. Those that no observation of the policy needs may stay as they are.
struct Readings {
  Vector joint_position;                          // rad (m for slides), in the order of Policy::joints()
  Vector joint_velocity;                          // rad/s, likewise
  std::array<double, 4> orientation{1, 0, 0, 0};  // of the base in the world: w, x, y, z
  Vector3 angular_velocity{};                     // of the base in its own frame, rad/s
  Vector3 linear_velocity{};                      // of the base in its own frame, m/s; a real robot has to estimate it
  Vector3 position{};                    // of the base in the world, m; only for policies that follow a motion's place
  std::map<std::string, Vector3> gyros;  // by the site of the IMU, rad/s
  std::map<std::string, Vector3> accelerometers;  // by the site of the IMU, m/s^2
  std::map<std::string, Vector> sensors;          // other sensors of the model, by name; see `sensors` of its metadata
};

namespace detail {

using Matrix3 = std::array<Vector3, 3>;

inline void demand(bool is_met, const std::string& message) {
  if (!is_met) throw std::runtime_error(message);
}

// A number of the metadata, or `otherwise` where they have null: JSON has no infinity.
inline double number(const Json& value, double otherwise) { return value.is_null() ? otherwise : value.get<double>(); }

inline Vector numbers(const Json& values, double otherwise = 0) {
  Vector result;
  for (const Json& value : values) result.push_back(number(value, otherwise));
  return result;
}

// The rotation matrix of a quaternion w, x, y, z; its columns are the axes of the rotated frame.
inline Matrix3 rotation(const double* q) {
  const double w = q[0], x = q[1], y = q[2], z = q[3];
  return {{{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
           {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
           {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}}};
}

// A vector of the world in a frame whose axes are the columns of a matrix.
inline Vector3 in_frame(const Matrix3& axes, const Vector3& v) {
  Vector3 result{};
  for (int i = 0; i < 3; ++i) result[i] = axes[0][i] * v[0] + axes[1][i] * v[1] + axes[2][i] * v[2];
  return result;
}

inline Vector vector(const Vector3& v) { return {v.begin(), v.end()}; }

template <class Map>
const typename Map::mapped_type& reading(const Map& readings, const std::string& name, const std::string& kind) {
  const auto found = readings.find(name);
  demand(found != readings.end(), "The readings must have the " + kind + " '" + name + "', which the policy observes.");
  return found->second;
}

template <class T>
std::vector<T> flat(const Json& values) {
  std::vector<T> result;
  if (!values.is_array()) return {values.get<T>()};
  for (const Json& value : values)
    for (const T& x : flat<T>(value)) result.push_back(x);
  return result;
}

}  // namespace detail

// An exported policy, with its memory, its commands and its clock.
class Policy {
 public:
  // A function for a class of observation: the readings and the arguments of the term, as the metadata have them.
  using Observation = std::function<Vector(const Readings&, const Json& args)>;

  // Functions by the class of the observation. Enter those of your own classes here.
  std::map<std::string, Observation> observations;

  // Throws std::runtime_error (Ort::Exception for ONNX Runtime's own) if the file cannot be used.
  explicit Policy(const std::string& path)
      : session_(env_, path.c_str(), options()),
        memory_info_(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault)) {
    read_metadata();
    check(path);
    for (const Json& name : metadata_.at("joints").at("names")) joints_.push_back(name);
    default_position_ = detail::numbers(metadata_.at("joints").at("default_position"));
    place_joints();
    const Json& map = metadata_.at("action_to_ctrl");
    offset_ = detail::numbers(map.at("offset"));
    constexpr double infinity = std::numeric_limits<double>::infinity();
    lower_ = detail::numbers(map.at("lower"), -infinity), upper_ = detail::numbers(map.at("upper"), infinity);
    for (const Json& row : map.at("scale")) scale_.push_back(row.is_array() ? detail::numbers(row) : Vector{row});
    for (const auto& [name, filter] : metadata_.at("action_filters").items()) {
      const Json& args = filter.at("args");
      if (filter.at("class") == "ActionSmoothing")
        filters_.push_back({1 - std::exp(-control_dt_s() / args.at("time_constant_s").get<double>()), "", {}});
      if (filter.at("class") == "AroundMotion") filters_.push_back({0, args.at("command"), {}});
    }
    for (const auto& [name, command] : metadata_.at("commands").items()) commands_[name] = default_command(command);
    add_observations();
    reset();
  }

  Policy(const Policy&) = delete;  // the observations refer to it
  Policy& operator=(const Policy&) = delete;

  // Resets the memory and the clock for the start of an episode, of a policy that tracks motions at one of its clips.
  void reset(std::size_t clip = 0) {
    clip_ = clip, num_steps_ = 0;
    memory_.clear();
    for (const Json& part : metadata_.at("memory")) memory_.push_back(start_of(part));
    action_.assign(metadata_.at("action_size").get<std::size_t>(), 0.0);
    for (Filter& filter : filters_) filter.smoothed = action_;
    for (const auto& [name, command] : metadata_.at("commands").items())
      if (command.at("class") == "MotionCommand") {
        const Json& first = command.at("args").at("motions").at("first");
        detail::demand(clip < first.size(),
                       "The clip (" + std::to_string(clip) + ") must be below " + std::to_string(first.size()) + ".");
        commands_[name] = {first[clip].get<double>() + 1};
      }
  }

  // Sets a command, such as {"velocity", {forward, leftward, turning}}.
  void command(const std::string& name, const Vector& values) {
    const auto found = commands_.find(name);
    detail::demand(found != commands_.end(), "The policy has no command '" + name + "'.");
    detail::demand(values.size() == found->second.size(), "Command '" + name + "' has " +
                                                              std::to_string(found->second.size()) + " numbers, but " +
                                                              std::to_string(values.size()) + " are given.");
    found->second = values;
  }

  // One control step. Returns a control per entry of targets_of(): for servos positions in rad, else torques in Nm.
  // Convert those of the file's own actuators (ModelActuators) by `gear` and `gain`: see docs/deploying.md.
  Vector step(const Readings& readings) {
    detail::demand(readings.joint_position.size() == joints_.size() && readings.joint_velocity.size() == joints_.size(),
                   "The readings must have positions and velocities of " + std::to_string(joints_.size()) + " joints.");
    run(readings);
    const Vector targets = controls(filtered(action_));
    ++num_steps_;
    for (const auto& [name, command] : metadata_.at("commands").items())
      if (command.at("class") == "MotionCommand") commands_[name] = {double(coming_frame(name, 1))};
    return targets;
  }

  // The observation of a group, such as "actor", as the network gets it.
  std::vector<float> observe(const std::string& group, const Readings& readings) const {
    std::vector<float> result;
    for (const Json& term : metadata_.at("observations").at(group).at("terms")) {
      const auto found = observations.find(term.at("class"));
      detail::demand(found != observations.end(), "Observation '" + term.at("name").get<std::string>() + "' is a " +
                                                      term.at("class").get<std::string>() +
                                                      ", which is not known. Enter a function of the readings and of " +
                                                      term.at("args").dump() + " in observations.");
      const Vector values = found->second(readings, term.at("args"));
      detail::demand(values.size() == term.at("size").get<std::size_t>(),
                     "Observation '" + term.at("name").get<std::string>() + "' must have " + term.at("size").dump() +
                         " numbers, but has " + std::to_string(values.size()) + ".");
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  }

  const Json& metadata() const { return metadata_; }
  double control_dt_s() const { return metadata_.at("control_dt_s"); }
  double time_s() const { return num_steps_ * control_dt_s(); }
  // The joints in the order of the readings.
  const std::vector<std::string>& joints() const { return joints_; }
  // The joint of each actuator; null for one that drives no single joint.
  const Json& targets_of() const { return metadata_.at("actuators").at("joints"); }
  // The last output of the network, before filters and limits.
  const Vector& action() const { return action_; }

 private:
  // A low-pass filter with the share of the new action, or a command with the motion that actions are around.
  struct Filter {
    double share;
    std::string around;
    Vector smoothed;
  };

  static Ort::SessionOptions options() {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);  // a small network, and a control loop beside it
    return options;
  }

  void read_metadata() {
    Ort::AllocatorWithDefaultOptions allocator;
    const Ort::ModelMetadata properties = session_.GetModelMetadata();
    for (const auto& key : properties.GetCustomMetadataMapKeysAllocated(allocator))
      metadata_[key.get()] = Json::parse(properties.LookupCustomMetadataMapAllocated(key.get(), allocator).get());
    action_output_ = session_.GetOutputNameAllocated(0, allocator).get();
  }

  void check(const std::string& path) const {
    detail::demand(metadata_.value("format", 0) == 2,
                   path + " is no policy exported by ksim in format 2; export it with run_mode=export.");
    detail::demand(metadata_.contains("robot"), path + " was trained without ksim's terms, so it holds no robot.");
    detail::demand(!metadata_.at("action_to_ctrl").is_null(),
                   "Actuators " + metadata_.at("actuators").at("class").dump() +
                       " are custom, so their controls are not in the file.");
  }

  // Places of the joints in the positions and velocities of motions, which are those of MuJoCo's whole model.
  void place_joints() {
    const Json& names = metadata_.at("model").at("names").at("joint");
    const Json& structure = metadata_.at("model").at("structure");
    const std::array<int, 4> sizes{7, 4, 1, 1}, dofs{6, 3, 1, 1};  // free, ball, slide, hinge
    int qpos = 0, qvel = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const int kind = structure.at("jnt_type")[i];
      if (kind == 0 && structure.at("jnt_bodyid")[i] == metadata_.at("robot").at("base_body")) base_qpos_ = qpos;
      places_[names[i]] = {qpos, qvel};
      qpos += sizes.at(kind), qvel += dofs.at(kind);
    }
  }

  // The middle of a command's ranges, or zeros.
  static Vector default_command(const Json& command) {
    Vector middle;
    for (const auto& [name, range] : command.at("ranges").items())
      middle.push_back((range[0].get<double>() + range[1].get<double>()) / 2);
    const std::size_t size = command.at("size");
    return middle.size() == size ? middle : Vector(size, 0.0);
  }

  Ort::Value start_of(const Json& part) const {
    const std::string dtype = part.at("dtype");
    if (dtype == "float32") return row<float>(part);
    if (dtype == "int32") return row<std::int32_t>(part);
    throw std::runtime_error("The memory's dtype (" + dtype + ") must be float32 or int32.");
  }

  template <class T>
  static Ort::Value row(const Json& part) {
    std::vector<std::int64_t> shape{1};
    for (const Json& size : part.at("shape")) shape.push_back(size);
    const std::vector<T> start = detail::flat<T>(part.at("start"));
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::Value value = Ort::Value::CreateTensor<T>(allocator, shape.data(), shape.size());
    std::copy(start.begin(), start.end(), value.GetTensorMutableData<T>());
    return value;
  }

  void run(const Readings& readings) {
    std::vector<std::vector<float>> groups;
    std::vector<std::string> inputs, outputs{action_output_};
    std::vector<Ort::Value> values;
    for (const auto& [group, layout] : metadata_.at("observations").items()) {
      groups.push_back(observe(group, readings));
      inputs.push_back(layout.at("input"));
    }
    for (std::vector<float>& group : groups) {
      const std::array<std::int64_t, 2> shape{1, std::int64_t(group.size())};
      values.push_back(Ort::Value::CreateTensor<float>(memory_info_, group.data(), group.size(), shape.data(), 2));
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      inputs.push_back(metadata_.at("memory").at(i).at("input"));
      outputs.push_back(metadata_.at("memory").at(i).at("output"));
      values.push_back(std::move(memory_[i]));
    }
    std::vector<const char*> input_names, output_names;
    for (const std::string& name : inputs) input_names.push_back(name.c_str());
    for (const std::string& name : outputs) output_names.push_back(name.c_str());
    auto results = session_.Run(Ort::RunOptions{}, input_names.data(), values.data(), values.size(),
                                output_names.data(), outputs.size());
    const float* action = results[0].GetTensorData<float>();
    action_.assign(action, action + action_.size());
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::move(results[i + 1]);
  }

  // An action after the filters of the training, in their order. Around a motion, it moves the targets away from the
  // commanded frame as it would from the default pose.
  Vector filtered(Vector action) {
    for (Filter& filter : filters_) {
      if (filter.around.empty()) {
        for (std::size_t i = 0; i < action.size(); ++i)
          action[i] = filter.smoothed[i] += filter.share * (action[i] - filter.smoothed[i]);
        continue;
      }
      const Json& frame = motions(filter.around).at("qpos")[std::size_t(commands_.at(filter.around)[0])];
      const Json& rest = metadata_.at("robot").at("default_qpos");
      for (std::size_t i = 0; i < action.size(); ++i) {
        const int place = places_.at(targets_of()[i]).first;
        action[i] += (frame[place].get<double>() - rest[place].get<double>()) / scale_[i].at(0);
      }
    }
    return action;
  }

  Vector controls(const Vector& action) const {
    Vector result = offset_;
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (scale_[i].size() == 1 && scale_.size() == action.size())
        result[i] += scale_[i][0] * action[i];
      else
        for (std::size_t j = 0; j < action.size(); ++j) result[i] += scale_[i][j] * action[j];
      result[i] = std::clamp(result[i], lower_[i], upper_[i]);
    }
    return result;
  }

  const Json& motions(const std::string& command) const {
    return metadata_.at("commands").at(command).at("args").at("motions");
  }

  // The frame that a motion command will ask for in so many control steps; at the end of its clip the last one.
  std::size_t coming_frame(const std::string& command, int steps) const {
    const double last = motions(command).at("last").at(clip_);
    return std::size_t(std::min(commands_.at(command)[0] + steps, last));
  }

  // Indices of the readings of the joints that a term observes: by default of all.
  std::vector<std::size_t> picked(const Json& names) const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < joints_.size(); ++i)
      if (names.is_null()) result.push_back(i);
    if (!names.is_null())
      for (const Json& name : names)
        result.push_back(std::find(joints_.begin(), joints_.end(), name) - joints_.begin());
    return result;
  }

  // A vector for each coming frame that a motion term observes, one after another.
  Vector of_frames(const Json& args, const std::string& field,
                   const std::function<Vector(const Json&)>& of_frame) const {
    Vector result;
    for (const Json& steps : args.at("steps"))
      for (const double x : of_frame(motions(args.at("command"))[field][coming_frame(args.at("command"), steps)]))
        result.push_back(x);
    return result;
  }

  void add_observations() {
    using detail::in_frame, detail::rotation, detail::vector;
    const auto axes = [](const Readings& now) { return rotation(now.orientation.data()); };
    observations["ProjectedGravity"] = [axes](const Readings& now, const Json&) {
      return vector(in_frame(axes(now), {0, 0, -1}));
    };
    observations["BaseAngularVelocity"] = [](const Readings& now, const Json&) { return vector(now.angular_velocity); };
    observations["BaseLinearVelocity"] = [](const Readings& now, const Json&) { return vector(now.linear_velocity); };
    observations["SensorReading"] = [](const Readings& now, const Json& args) {
      const std::string name = args.at("sensor");
      Vector result = detail::reading(now.sensors, name, "sensor");
      for (int k = 1;; ++k) {
        const auto part = now.sensors.find("ksim_" + name + "_part_" + std::to_string(k));
        if (part == now.sensors.end()) return result;
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += part->second.at(i);
      }
    };
    observations["ImuGyro"] = [](const Readings& now, const Json& args) {
      return vector(detail::reading(now.gyros, args.at("site"), "gyro"));
    };
    observations["ImuAccelerometer"] = [](const Readings& now, const Json& args) {
      return vector(detail::reading(now.accelerometers, args.at("site"), "accelerometer"));
    };
    observations["JointPosition"] = [this](const Readings& now, const Json& args) {
      Vector result;
      for (const std::size_t i : picked(args.at("joints")))
        result.push_back(now.joint_position[i] - default_position_[i]);
      return result;
    };
    observations["JointVelocity"] = [this](const Readings& now, const Json& args) {
      Vector result;
      for (const std::size_t i : picked(args.at("joints"))) result.push_back(now.joint_velocity[i]);
      return result;
    };
    observations["PhaseClock"] = [this](const Readings&, const Json& args) {
      const double angle = 2 * M_PI * time_s() / args.at("period_s").get<double>();
      return Vector{std::sin(angle), std::cos(angle)};
    };
    observations["CommandValue"] = [this](const Readings&, const Json& args) {
      return commands_.at(args.at("command"));
    };
    observations["LastAction"] = [this](const Readings&, const Json&) { return action_; };
    observations["MotionPhase"] = [this](const Readings&, const Json& args) {
      const Json& clips = motions(args.at("command"));
      const double first = clips.at("first").at(clip_), last = clips.at("last").at(clip_);
      return Vector{(commands_.at(args.at("command"))[0] - first) / (last - first)};
    };
    observations["MotionJoints"] = [this](const Readings&, const Json& args) {
      return of_frames(args, "qpos", [&](const Json& qpos) {
        Vector result;
        for (const std::size_t i : picked(args.at("joints")))
          result.push_back(qpos[places_.at(joints_[i]).first].get<double>() - default_position_[i]);
        return result;
      });
    };
    observations["MotionJointVelocities"] = [this](const Readings&, const Json& args) {
      return of_frames(args, "qvel", [&](const Json& qvel) {
        Vector result;
        for (const std::size_t i : picked(args.at("joints"))) result.push_back(qvel[places_.at(joints_[i]).second]);
        return result;
      });
    };
    observations["MotionBasePosition"] = [this, axes](const Readings& now, const Json& args) {
      return of_frames(args, "qpos", [&](const Json& qpos) {
        Vector3 way;
        for (int i = 0; i < 3; ++i) way[i] = qpos[base_qpos_ + i].get<double>() - now.position[i];
        return vector(in_frame(axes(now), way));
      });
    };
    observations["MotionBaseOrientation"] = [this, axes](const Readings& now, const Json& args) {
      return of_frames(args, "qpos", [&](const Json& qpos) {
        const Vector wanted = detail::numbers(qpos);
        const detail::Matrix3 frame = rotation(wanted.data() + base_qpos_ + 3);
        Vector result;
        for (int axis = 0; axis < 2; ++axis)
          for (const double x : in_frame(axes(now), {frame[0][axis], frame[1][axis], frame[2][axis]}))
            result.push_back(x);
        return result;
      });
    };
  }

  Ort::Env env_{ORT_LOGGING_LEVEL_WARNING, "ksim"};
  Ort::Session session_;
  Ort::MemoryInfo memory_info_;
  Json metadata_;
  std::string action_output_;
  std::vector<std::string> joints_;
  std::map<std::string, std::pair<int, int>> places_;
  int base_qpos_ = 0;
  std::size_t clip_ = 0, num_steps_ = 0;
  Vector default_position_, offset_, lower_, upper_, action_;
  std::vector<Vector> scale_;
  std::vector<Filter> filters_;
  std::map<std::string, Vector> commands_;
  std::vector<Ort::Value> memory_;
};

}  // namespace ksim
