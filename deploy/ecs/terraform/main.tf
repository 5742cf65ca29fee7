# feedq on ECS for those who use Terraform. The resources are those of ../feedq.yaml, which CloudFormation makes, so that
# there is one description of them; Terraform has the parameters and the outputs. Roll out in three steps, as
# rollout.py does: apply with a new `next_image`, run the release task, apply with `image`.

terraform {
  required_version = ">= 1.3"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "Name of the stack, and of what is in it."
  type        = string
  default     = "feedq"
}

variable "next_image" {
  description = "The image that migrates the database."
  type        = string
}

variable "image" {
  description = "The image of the services; empty before the first migration."
  type        = string
  default     = ""
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  description = "Subnets of the tasks."
  type        = list(string)
}

variable "load_balancer_subnet_ids" {
  type = list(string)
}

variable "secret_arn" {
  description = "The secret in Secrets Manager with the keys that deploy/secret.py writes."
  type        = string
}

variable "database_security_group_id" {
  type = string
}

variable "broker_security_group_id" {
  type = string
}

variable "certificate_arn" {
  type = string
}

variable "flower_host" {
  type = string
}

variable "api_host" {
  type = string
}

variable "parameters" {
  description = "Any other parameter of ../feedq.yaml, such as { WorkersMin = 6 }."
  type        = map(string)
  default     = {}
}

resource "aws_cloudformation_stack" "feedq" {
  name          = var.name
  template_body = file("${path.module}/../feedq.yaml")
  capabilities  = ["CAPABILITY_IAM"]
  parameters = merge({
    NextImage             = var.next_image
    Image                 = var.image
    VpcId                 = var.vpc_id
    SubnetIds             = join(",", var.subnet_ids)
    LoadBalancerSubnetIds = join(",", var.load_balancer_subnet_ids)
    Secret                = var.secret_arn
    DatabaseSecurityGroup = var.database_security_group_id
    BrokerSecurityGroup   = var.broker_security_group_id
    CertificateArn        = var.certificate_arn
    FlowerHost            = var.flower_host
    ApiHost               = var.api_host
  }, var.parameters)
}

output "stack" {
  description = "Cluster, one-off tasks, log group and the name of the load balancer."
  value       = aws_cloudformation_stack.feedq.outputs
}
