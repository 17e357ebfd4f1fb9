// A ROS 2 node that runs a policy exported by ksim.
//
//   ros2 run ksim_policy policy_node --ros-args -p policy:=/path/to/policy.onnx
//
// Subscribes to
//   joint_states  sensor_msgs/JointState     positions and velocities, in any order
//   imu/data      sensor_msgs/Imu            orientation, angular velocity and acceleration in the base's frame; only
//                                            if the policy observes them
//   odom          nav_msgs/Odometry          linear velocity in the base's frame; only if the policy observes it
//   cmd_vel       geometry_msgs/Twist        forward, leftward and turning velocity; only if the policy takes commands
// and publishes, at the policy's control rate,
//   commands      std_msgs/Float64MultiArray a control per actuator, as the forward_command_controller of ros2_control
//                                            takes them
//
// Parameters: `policy`, the file; `command`, the name of the policy's command that cmd_vel sets; `timeout_s`, the age
// of readings at which the node falls silent and starts anew; `command_timeout_s`, the age at which a command is zero.
// Motors must hold or relax by themselves when no commands come.
#include <algorithm>
#include <geometry_msgs/msg/twist.hpp>
#include <memory>
#include <nav_msgs/msg/odometry.hpp>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/imu.hpp>
#include <sensor_msgs/msg/joint_state.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>

#include "ksim_policy.hpp"

namespace {

constexpr int kAccelerometer = 1, kGyro = 3;  // of MuJoCo's mjtSensor

class PolicyNode : public rclcpp::Node {
 public:
  PolicyNode()
      : Node("ksim_policy"),
        policy_(declare_parameter<std::string>("policy")),
        command_(declare_parameter<std::string>("command", "velocity")),
        timeout_s_(declare_parameter<double>("timeout_s", 0.1)),
        command_timeout_s_(declare_parameter<double>("command_timeout_s", 0.5)),
        joints_at_(never()),
        imu_at_(never()),
        odometry_at_(never()),
        command_at_(never()) {
    for (const auto& [name, command] : policy_.metadata().at("commands").items())
      takes_command_ |= command.at("class") != "MotionCommand";  // which moves on by itself
    if (takes_command_) policy_.command(command_, asked_);  // or the error would come with the first readings
    readings_.joint_position.assign(policy_.joints().size(), 0.0);
    readings_.joint_velocity = readings_.joint_position;
    find_sensors();

    const auto sensor_qos = rclcpp::SensorDataQoS();
    publisher_ = create_publisher<std_msgs::msg::Float64MultiArray>("commands", 1);
    on_joints_ = create_subscription<sensor_msgs::msg::JointState>(
        "joint_states", sensor_qos, [this](const sensor_msgs::msg::JointState& message) { take_joints(message); });
    on_imu_ = create_subscription<sensor_msgs::msg::Imu>(
        "imu/data", sensor_qos, [this](const sensor_msgs::msg::Imu& message) { take_imu(message); });
    on_odometry_ = create_subscription<nav_msgs::msg::Odometry>(
        "odom", sensor_qos, [this](const nav_msgs::msg::Odometry& message) { take_odometry(message); });
    on_command_ = create_subscription<geometry_msgs::msg::Twist>(
        "cmd_vel", 1, [this](const geometry_msgs::msg::Twist& message) { take_command(message); });
    timer_ = rclcpp::create_timer(this, get_clock(), rclcpp::Duration::from_seconds(policy_.control_dt_s()),
                                  [this] { act(); });
  }

 private:
  rclcpp::Time never() { return rclcpp::Time(0, 0, get_clock()->get_clock_type()); }

  bool is_recent(const rclcpp::Time& time, double seconds) {
    const double age = (now() - time).seconds();
    return time.nanoseconds() > 0 && age >= 0 && age < seconds;  // simulated time begins at 0, and may begin again
  }

  // Finds the readings of the IMU that the policy observes, once and not at every message.
  void find_sensors() {
    for (const ksim::Json& term : policy_.metadata().at("observations").at("actor").at("terms")) {
      const std::string kind = term.at("class");
      observes_velocity_ |= kind == "BaseLinearVelocity";
      for (const char* of_imu : {"ProjectedGravity", "BaseAngularVelocity", "ImuGyro", "ImuAccelerometer",
                                 "SensorReading", "MotionBasePosition", "MotionBaseOrientation"})
        observes_imu_ |= kind == of_imu;
      if (kind == "ImuGyro") readings_.gyros[term.at("args").at("site")] = {};
      if (kind == "ImuAccelerometer") readings_.accelerometers[term.at("args").at("site")] = {};
    }
    for (const ksim::Json& sensor : policy_.metadata().at("model").at("sensors")) {
      if (sensor.at("type") == kGyro) gyros_.push_back(sensor.at("name"));
      if (sensor.at("type") == kAccelerometer) accelerometers_.push_back(sensor.at("name"));
    }
  }

  void take_joints(const sensor_msgs::msg::JointState& message) {
    std::size_t num_found = 0;
    for (std::size_t i = 0; i < message.name.size(); ++i) {
      const auto& names = policy_.joints();
      const auto found = std::find(names.begin(), names.end(), message.name[i]);
      if (found == names.end() || i >= message.position.size() || i >= message.velocity.size()) continue;
      readings_.joint_position[found - names.begin()] = message.position[i];
      readings_.joint_velocity[found - names.begin()] = message.velocity[i];
      ++num_found;
    }
    if (num_found == policy_.joints().size())
      joints_at_ = now();
    else
      RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000,
                           "joint_states must have positions and velocities of all joints of the policy");
  }

  void take_imu(const sensor_msgs::msg::Imu& message) {
    const auto &turn = message.angular_velocity, &push = message.linear_acceleration;
    readings_.orientation = {message.orientation.w, message.orientation.x, message.orientation.y,
                             message.orientation.z};
    const ksim::Vector3 gyro{turn.x, turn.y, turn.z}, acceleration{push.x, push.y, push.z};
    readings_.angular_velocity = gyro;
    for (auto& [site, reading] : readings_.gyros) reading = gyro;
    for (auto& [site, reading] : readings_.accelerometers) reading = acceleration;
    for (const std::string& name : gyros_) readings_.sensors[name] = {turn.x, turn.y, turn.z};
    for (const std::string& name : accelerometers_) readings_.sensors[name] = {push.x, push.y, push.z};
    imu_at_ = now();
  }

  void take_odometry(const nav_msgs::msg::Odometry& message) {
    const auto& velocity = message.twist.twist.linear;
    readings_.linear_velocity = {velocity.x, velocity.y, velocity.z};
    odometry_at_ = now();
  }

  void take_command(const geometry_msgs::msg::Twist& message) {
    asked_ = {message.linear.x, message.linear.y, message.angular.z};
    command_at_ = now();
  }

  void act() {
    const bool is_complete = is_recent(joints_at_, timeout_s_) && (!observes_imu_ || is_recent(imu_at_, timeout_s_)) &&
                             (!observes_velocity_ || is_recent(odometry_at_, timeout_s_));
    if (!is_complete) {
      RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "no commands: readings are older than %g s", timeout_s_);
      policy_.reset();
      return;
    }
    if (takes_command_)
      policy_.command(command_, is_recent(command_at_, command_timeout_s_) ? asked_ : ksim::Vector{0, 0, 0});
    std_msgs::msg::Float64MultiArray targets;
    targets.data = policy_.step(readings_);
    publisher_->publish(targets);
  }

  ksim::Policy policy_;
  std::string command_;
  double timeout_s_, command_timeout_s_;
  bool observes_velocity_ = false, observes_imu_ = false, takes_command_ = false;
  ksim::Readings readings_;
  std::vector<std::string> gyros_, accelerometers_;  // names of sensors
  ksim::Vector asked_{0, 0, 0};
  rclcpp::Time joints_at_, imu_at_, odometry_at_, command_at_;
  rclcpp::Publisher<std_msgs::msg::Float64MultiArray>::SharedPtr publisher_;
  rclcpp::Subscription<sensor_msgs::msg::JointState>::SharedPtr on_joints_;
  rclcpp::Subscription<sensor_msgs::msg::Imu>::SharedPtr on_imu_;
  rclcpp::Subscription<nav_msgs::msg::Odometry>::SharedPtr on_odometry_;
  rclcpp::Subscription<geometry_msgs::msg::Twist>::SharedPtr on_command_;
  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace

int main(int argc, char** argv) {
  rclcpp::init(argc, argv);
  try {
    rclcpp::spin(std::make_shared<PolicyNode>());
  } catch (const std::exception& error) {
    RCLCPP_FATAL(rclcpp::get_logger("ksim_policy"), "%s", error.what());
    return 1;
  }
  rclcpp::shutdown();
}
